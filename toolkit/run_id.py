"""Of which run a process is: in its environment, and in what it answers.

A run is what one launcher started, once: the launcher of each host of a deployment has an id of
its own, and a new one at every start.
"""

from __future__ import annotations

import os

VARIABLE = "TOOLKIT_RUN_ID"
"""Environment variable that marks every process of one run, even one that left its group."""
HEADER = "x-toolkit-run"
"""Of an answer: the run whose router gave it. Of a request: the run for whose router it is."""


def own() -> str:
    """The run of this process; empty where no launcher started it."""
    return os.environ.get(VARIABLE, "")
