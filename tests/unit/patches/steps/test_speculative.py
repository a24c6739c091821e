"""A worker with speculative decoding does not start."""

from types import SimpleNamespace

import pytest

from patches.base import REFUSED_EXIT_CODE
from patches.steps import speculative


@pytest.mark.parametrize("algorithm", ["NGRAM", "EAGLE", None])
def test_speculative_decoding_is_refused(
    algorithm: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("os._exit", leave)
    arguments = SimpleNamespace(speculative_algorithm=algorithm)
    if algorithm is None:
        speculative.check_worker(arguments)
        return
    with pytest.raises(SystemExit) as ended:
        speculative.check_worker(arguments)
    assert ended.value.code == REFUSED_EXIT_CODE
    assert f"{algorithm} gives several tokens a step" in capsys.readouterr().err
