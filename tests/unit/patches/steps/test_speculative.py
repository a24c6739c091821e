"""A worker whose speculative decoding was not tried does not start."""

from types import SimpleNamespace

import pytest

from patches import check_args, flags
from patches.base import REFUSED_EXIT_CODE
from patches.steps import speculative


@pytest.mark.parametrize("algorithm", ["NGRAM", "EAGLE", None])
def test_speculative_decoding_is_looked_at(
    algorithm: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("os._exit", leave)
    asked: list[object] = []
    monkeypatch.setattr(flags, "resolve_flags", asked.append)
    monkeypatch.setattr(check_args, "resolved", lambda view: vars(view))
    arguments = SimpleNamespace(speculative_algorithm=algorithm, disaggregation_mode="decode")
    if algorithm != "NGRAM":
        speculative.check_worker(arguments)
        assert bool(asked) == (algorithm is not None), "what SGLang makes of it is judged"
        return
    with pytest.raises(SystemExit) as ended:
        speculative.check_worker(arguments)
    assert ended.value.code == REFUSED_EXIT_CODE
    assert "NGRAM: SGLang's decode workers die" in capsys.readouterr().err
