"""Workers whose role or ranks may change while they serve."""

from types import SimpleNamespace
from typing import Any

import pytest

from patches.base import REFUSED_EXIT_CODE
from patches.start import changing


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"enable_pd_role_switch": True}, "--enable-pd-role-switch"),
        ({"elastic_ep_backend": "mooncake"}, "--elastic-ep-backend"),
        ({"enable_pd_role_switch": False, "elastic_ep_backend": None}, ""),
        ({}, ""),
    ],
)
def test_they_do_not_start(
    given: dict[str, Any],
    flag: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(changing, "resolved_view", lambda view: view)
    if not flag:
        changing.check_worker(SimpleNamespace(**given))
        return
    with pytest.raises(SystemExit) as ended:
        changing.check_worker(SimpleNamespace(**given))
    assert ended.value.code == REFUSED_EXIT_CODE
    assert flag in capsys.readouterr().err
