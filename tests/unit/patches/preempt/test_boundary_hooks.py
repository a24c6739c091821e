"""Looks between layers: a model may name what it calls a layer with, or not."""

from types import SimpleNamespace
from typing import Any

import pytest

from patches.preempt import boundary
from patches.preempt.boundary_state import BoundaryState
from patches.scheduler_state import current
from toolkit.contract.preempting import Preempting

torch = pytest.importorskip("torch")


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, positions: Any, hidden_states: Any, forward_batch: Any) -> Any:
        return hidden_states


@pytest.mark.parametrize("named", [False, True], ids=["by place", "by name"])
def test_the_forward_is_found(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    running: Any = object()
    state = BoundaryState(running=running)
    monkeypatch.setitem(current().parts, BoundaryState, state)
    monkeypatch.setattr(boundary, "_ranks", lambda: 1)
    looks: list[int] = []
    monkeypatch.setattr(boundary, "look", lambda scheduler: looks.append(state.done))
    layers = [Layer() for _ in range(5)]
    inner = SimpleNamespace(model=SimpleNamespace(layers=layers))
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=inner))
    boundary.look_between_layers(SimpleNamespace(tp_worker=worker), Preempting(slice=2))
    forward = SimpleNamespace(forward_mode="extend")
    for layer in layers:
        if named:
            layer(positions=0, hidden_states=1, forward_batch=forward)
        else:
            layer(0, 1, forward)
    assert state.forward is forward
    assert looks == [2, 4]


def test_requests_that_waited_come_first_however_the_receiver_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SGLang 0.5.17 gives it nothing, 0.5.21 names what it gives."""

    def receive(receiver: Any, local_reqs: Any = None) -> list[str]:
        return ["new", *(local_reqs or ())]

    for given, named, told in (
        ((), {}, ["kept", "new"]),
        ((["abort"],), {}, ["kept", "new", "abort"]),
        ((), {"local_reqs": ["abort"]}, ["kept", "new", "abort"]),
    ):
        monkeypatch.setitem(current().parts, BoundaryState, BoundaryState())
        kept: Any = current().get(BoundaryState).kept
        kept.append("kept")
        assert boundary._kept_first(receive, None, *given, **named) == told
        assert boundary._kept_first(receive, None) == ["new"]
