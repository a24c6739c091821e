"""Workers that share a GPU start side by side, and take memory one after the other.

SGLang sizes its KV pool by what it finds free: free memory once the weights are there, less a share
(1 - `--mem-fraction-static`) of what was free before (`mem_cache/kv_cache_configurator.py`,
`_profile_available_bytes`, in all supported releases). `--max-total-tokens` only bounds the result.
So what another worker takes in between makes the pool smaller, or ends the start ("Loaded weights
leave no GPU memory"). But most of a start is no memory: imports of the HTTP process and of the
schedulers, the tokenizer. That goes on abreast; a scheduler waits before it touches the GPU until
those that the launcher put before it (`toolkit.contract.memory_turn`) have their weights, KV pool
and CUDA graphs.
"""

import os
import time
from pathlib import Path

from patches.base import Hook, Patch, Process
from patches.layers import Original
from patches.sglang_types import Scheduler
from toolkit.contract.memory_turn import MemoryTurn
from toolkit.contract.variables import TURN_VARIABLE
from toolkit.limited_logs import limited_logger

log = limited_logger("toolkit.start")

LOOK_S = 0.05


def _in_turn(
    original: Original[None], scheduler: Scheduler, *args: object, **kwargs: object
) -> None:
    turn = MemoryTurn.read(os.environ[TURN_VARIABLE])
    wait(turn)
    original(scheduler, *args, **kwargs)
    Path(turn.folder, turn.file(os.getppid(), os.getpid())).touch()


def wait(turn: MemoryTurn) -> None:
    """Until all before it have their memory. The launcher bounds it, by `timeouts.start`."""
    began = time.monotonic()
    waits_for = _before(turn)
    if not waits_for:
        return
    log.info("Waiting for the GPU memory of %s.", ", ".join(waits_for))
    while _before(turn):
        time.sleep(LOOK_S)
    log.info("It was this worker's turn after %.1f s.", time.monotonic() - began)


def _before(turn: MemoryTurn) -> list[str]:
    return turn.waits_for(each.name for each in Path(turn.folder).iterdir())


PATCH = Patch(
    name="memory_turn",
    why="workers that size their KV pools by the same free memory take it from each other",
    processes=frozenset({Process.SCHEDULER}),
    variable=TURN_VARIABLE,
    hooks=(
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.__init__",
            _in_turn,
            ("self", "server_args", "port_args"),
        ),
    ),
)
