"""What all tests share."""

from __future__ import annotations

import os

# A proxy of the machine's must not stand between a test and its own loopback servers.
os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
os.environ.setdefault("no_proxy", "127.0.0.1,localhost")
