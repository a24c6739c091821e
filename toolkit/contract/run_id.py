"""Of which run a process is: in its environment, and in what it answers.

A run is what one launcher started, once: the launcher of each host of a deployment has an id of
its own, and a new one at every start. It is in RUN_ID_VARIABLE, and in the header `x-toolkit-run`.
"""

import os

from toolkit.contract.variables import RUN_ID_VARIABLE


def own() -> str:
    """The run of this process; empty where no launcher started it."""
    return os.environ.get(RUN_ID_VARIABLE, "")
