"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# A proxy of the machine's must not stand between a test and its own loopback servers.
os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
os.environ.setdefault("no_proxy", "127.0.0.1,localhost")

# Machines are shared: a slow example says nothing of the code.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
