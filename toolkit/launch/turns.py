"""What workers that share a GPU wait for at their first start. Pure.

Two of them may import and load side by side, but SGLang sizes a KV pool by the memory that is free,
so that they take memory one after the other. Their schedulers see to that themselves
(`patches.start.memory_turn`) where they can say when they have it: each rank of a worker that is
one process group here. Of others the launcher waits until the one before is ready.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from toolkit.launch.plan import WorkerPlan
from toolkit.launch.process import WORKER

STAGED = frozenset({"--pp-size", "--pipeline-parallel-size"})
"""With them a worker has more ranks than its plan says."""


@dataclass(frozen=True)
class Turn:
    """Of one worker: `ready`, names of those that must be ready before it is started; `memory`,
    those that must have taken their memory before it takes its own, with their ranks. `asked`:
    somebody waits for this one's memory."""

    ready: tuple[str, ...] = ()
    memory: tuple[tuple[str, int], ...] = ()
    asked: bool = False


def turns(workers: Iterable[WorkerPlan]) -> dict[str, Turn]:
    """Of each worker, by name; `after` of a plan says who is before whom."""
    by_name = {worker.name: worker for worker in workers}
    memory = {
        name: tuple(
            (other, by_name[other].ranks)
            for other in worker.after
            if other in by_name and _says(worker) and _says(by_name[other])
        )
        for name, worker in by_name.items()
    }
    asked = {other for pairs in memory.values() for other, _ in pairs}
    return {
        name: Turn(
            ready=tuple(other for other in worker.after if other not in dict(memory[name])),
            memory=memory[name],
            asked=name in asked,
        )
        for name, worker in by_name.items()
    }


def _says(worker: WorkerPlan) -> bool:
    """Whether all its ranks are here, as many as the plan says, and run with our patches."""
    ours = tuple(worker.command[1:3]) == ("-m", WORKER)
    return ours and worker.nodes == 1 and not STAGED & set(worker.argv)
