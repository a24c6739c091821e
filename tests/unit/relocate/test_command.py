"""Which servers `toolkit relocate` is for."""

from typing import Any

import pytest
import typer

from toolkit.cli import relocate as command

CALLED: dict[str, Any] = {
    "kind": "joint", "every": 3000, "tokens": 8192, "share": 0.1, "drift": 0.05,
    "expert_share": 0.5, "stall_ms": 0.0, "dry_run": True, "once": True, "port": 0, "run": None,
}  # fmt: skip


class Run:
    """Of an operator: what its workers are."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def workers(self, role: str) -> list[str]:
        assert role == "decode"
        return self.names

    def url_of(self, worker: str) -> str:
        return f"http://{worker}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"d0": "http://d0", "d1": "http://d1"}),
        (["d1"], {"d1": "http://d1"}),
        (["http://x/", "http://x/"], {"http://x/": "http://x"}),
        (["http://x", "d0"], {"http://x": "http://x", "d0": "http://d0"}),
    ],
)
def test_named_ones_urls_or_all(
    words: list[str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    async def serve(servers: dict[str, str], *_: Any, **__: Any) -> None:
        given.append(servers)

    monkeypatch.setattr(command, "operator", lambda run: Run(["d0", "d1"]))
    monkeypatch.setattr("toolkit.relocate.serve.serve", serve)
    command.relocate(words, **CALLED)
    assert given == [expected]


def test_a_run_without_decode_workers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "operator", lambda run: Run([]))
    with pytest.raises(typer.BadParameter, match="no decode workers"):
        command.relocate([], **CALLED)
