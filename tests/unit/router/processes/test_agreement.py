"""Whether processes of two generations can be one router."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit.router.processes import shared, wire
from toolkit.router.processes.agreement import Agreement, agreement, why_not
from toolkit.router.processes.shared import ACCEPTS, CONNECTIONS, RETIRES, SERVES, SharedRows
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.load import load_config


def config(folder: Path, **more: Any) -> RouterConfig:
    worker = {"name": "w", "role": "plain", "url": "http://127.0.0.1:1"}
    path = folder / "router.json"
    path.write_text(json.dumps({"workers": [worker], **more}))
    return load_config(path)


def told(agreed: Agreement) -> dict[str, Any]:
    """As the other generation says it."""
    said: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(agreed))
    return said


def test_what_processes_need_not_agree_on_may_change(tmp_path: Path) -> None:
    old = agreement(config(tmp_path), 2)
    assert why_not(old, told(agreement(config(tmp_path, max_inflight=7, seed=3), 2))) == ""


def test_all_that_differs_is_said(tmp_path: Path) -> None:
    old = agreement(config(tmp_path), 2)
    new = agreement(config(tmp_path, port=7), 3)
    assert why_not(old, told(new)) == (
        "`relays` is another number; `host`, `port` or `admin_port` is another one"
    )
    assert why_not(old, told(old) | {"later": 1}) == "later"


@pytest.mark.parametrize("changed", ["meaning", "cells", "message"])
def test_what_they_say_to_each_other_is_part_of_it(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = agreement(config(tmp_path), 2)
    if changed == "meaning":
        monkeypatch.setattr(wire, "MEANING", wire.MEANING + 1)
    elif changed == "cells":
        monkeypatch.setattr(shared, "CELLS", (*shared.CELLS, "more"))
    else:
        more = msgspec.defstruct("WireBeat", [("ranks", list[int])], array_like=True, tag=30)
        frame = msgspec.defstruct("DeciderFrame", [("messages", list[more])])  # type: ignore[valid-type]
        monkeypatch.setattr("toolkit.router.processes.agreement._SAID", (wire.RelayFrame, frame))
    wrong = why_not(old, told(agreement(config(tmp_path), 2)))
    assert wrong == "its processes say other things to each other in the new code"


def test_numbers_are_seen_by_whoever_has_their_descriptor() -> None:
    rows = SharedRows(6)
    theirs = SharedRows(6, rows.number)
    rows.put(1, CONNECTIONS, 5)
    rows.put(4, CONNECTIONS, 7)
    assert theirs.beside(2, CONNECTIONS) == 12 and theirs.beside(4, CONNECTIONS) == 5
    for row, how in ((1, RETIRES), (4, ACCEPTS), (5, ACCEPTS)):
        rows.put(row, SERVES, how)
        rows.beat(row)
    assert theirs.serving(ACCEPTS) == [4, 5] and theirs.serving(ACCEPTS, RETIRES) == [1, 4, 5]
    assert theirs.others(5) == [7], "one that takes no new ones is not left any"
    theirs.clear(4)
    assert rows.others(5) == []
