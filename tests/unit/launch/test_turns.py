"""Who waits for what when workers share a GPU: pure."""

from dataclasses import replace
from pathlib import Path

from tests.unit.launch.stand_ins import plan, worker
from toolkit.contract.memory_turn import MemoryTurn
from toolkit.contract.variables import TURN_VARIABLE
from toolkit.launch.plan import WorkerPlan
from toolkit.launch.process import WORKER
from toolkit.launch.resolve import resolve
from toolkit.launch.started import started
from toolkit.launch.turns import Turn, turns
from toolkit.settings.deployment import Deployment


def ours(name: str, *after: str, argv: tuple[str, ...] = (), **more: object) -> WorkerPlan:
    one = replace(worker(name, 31000), after=after, argv=argv, **more)  # type: ignore[arg-type]
    return replace(one, command=("python", "-m", WORKER, *argv))


def test_workers_on_one_gpu_wait_for_memory_and_not_to_be_started() -> None:
    found = turns([ours("a"), ours("b", "a"), ours("c", "a", "b"), ours("d")])
    assert found == {
        "a": Turn(asked=True),
        "b": Turn(memory=(("a", 1),), asked=True),
        "c": Turn(memory=(("a", 1), ("b", 1))),
        "d": Turn(),
    }


def test_all_ranks_are_waited_for() -> None:
    tensor = ours("a", tp=4)
    assert turns([tensor, ours("b", "a")])["b"].memory == (("a", 4),)
    attention = ours("a", tp=4, dp=2, dp_attention=True)
    assert turns([attention, ours("b", "a")])["b"].memory == (("a", 4),)
    copies = ours("a", tp=2, dp=2)
    assert turns([copies, ours("b", "a")])["b"].memory == (("a", 4),)


def test_who_cannot_say_that_it_has_its_memory_is_waited_for_whole() -> None:
    nodes = ours("a", nodes=2)
    stages = ours("a", argv=("--pp-size", "2"))
    other = replace(worker("a", 31000), after=())  # no worker of ours
    for first in (nodes, stages, other):
        found = turns([first, ours("b", "a")])
        assert found == {"a": Turn(), "b": Turn(ready=("a",))}
    found = turns([ours("a"), ours("b", "a", nodes=2)])
    assert found == {"a": Turn(), "b": Turn(ready=("a",))}


def test_the_processes_are_told(tmp_path: Path) -> None:
    planned = plan([ours("a"), ours("b", "a"), ours("c")])
    a, b, c = started(planned, tmp_path, tmp_path, ())
    assert [m.after for m in (a, b, c)] == [(), (), ()]
    assert TURN_VARIABLE not in c.env
    assert MemoryTurn.read(a.env[TURN_VARIABLE]).after == {}
    turn = MemoryTurn.read(b.env[TURN_VARIABLE])
    assert turn.after == {"a": 1} and turn.own == "b" and Path(turn.folder).is_dir()


def test_cpu_workers_wait_for_nobody() -> None:
    role = {"replicas": 2, "kv_tokens": 4096}
    described = Deployment.model_validate(
        {"name": "cpu", "device": "cpu", "model": "embedded", "prefill": role, "decode": role}
    )
    assert set(turns(resolve(described).workers).values()) == {Turn()}


def test_three_workers_of_one_gpu_of_a_real_deployment() -> None:
    shared = {"gpus": [0], "kv_tokens": 4096}
    described = Deployment.model_validate(
        {
            "name": "shared",
            "device": "cuda",
            "model": "embedded",
            "prefill": {"replicas": 1, **shared},
            "decode": {"replicas": 2, **shared},
        }
    )
    found = turns(resolve(described).workers)
    assert [turn.ready for turn in found.values()] == [(), (), ()]
    assert [len(turn.memory) for turn in found.values()] == [0, 1, 2]
