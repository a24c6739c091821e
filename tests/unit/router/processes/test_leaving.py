"""A decider process that makes room for the next one keeps its hands off what runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.router.house import House, run
from toolkit.contract.request_class import RequestClass
from toolkit.policies.base import RequestView
from toolkit.router.processes import wire
from toolkit.router.processes.hub import Hub
from toolkit.router.processes.link import ProcessLink
from toolkit.router.processes.shared import SharedRows
from toolkit.router.processes.switched_file import NAME, SwitchedFile


class Link:
    """A relay's, as the hub has it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def send(self, message: Any) -> None:
        pass

    def close(self) -> None:
        self._hub.lost(cast("ProcessLink[Any]", self))


def arrive(number: int) -> wire.WireArrive:
    view = RequestView(10, 0, (), None, None, request_class=RequestClass.STANDARD)
    told = wire.WireView.of(view)
    return wire.WireArrive(number, "rid", False, told, "split", True, 0.0, 9.9, b"")


@pytest.mark.parametrize("leaves", [True, False])
def test_requests_go_on_when_it_leaves_and_end_with_a_relay_that_dies(
    leaves: bool, tmp_path: Path
) -> None:
    async def check() -> None:
        house = House()
        hub = Hub(1, SharedRows(6), SwitchedFile(tmp_path))
        hub.begin(house.control, None)
        link = Link(hub)
        known = cast("ProcessLink[Any]", link)
        hub.linked(known)
        hub.take(known, wire.WireJoined(1, 7))
        (relay,) = hub
        hub.take(known, arrive(3))
        if leaves:
            hub.leave()
            hub.take(known, arrive(4))
        else:
            link.close()
        assert list(relay.requests) == ([3] if leaves else [])
        assert (tmp_path / NAME).exists()

    run(check)
