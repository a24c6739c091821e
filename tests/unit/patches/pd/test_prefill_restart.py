"""When a decode worker forgets a prefill worker's address."""

import threading
from types import SimpleNamespace
from typing import Any

from patches.pd.prefill_restart import _forget_suspect, _watch_failures

ADDRESS = "10.0.0.1:8998"


def manager() -> Any:
    """The part of SGLang's KV manager that the patch touches, watched as at start-up."""
    made = SimpleNamespace(
        heartbeat_failures={},
        connection_lock=threading.Lock(),
        connection_pool={f"{ADDRESS}_0_0": ["rank"], "10.0.0.2:8998_0_0": ["other"]},
        prefill_info_table={ADDRESS: "info", "10.0.0.2:8998": "other"},
    )
    _watch_failures(lambda _: None, made)
    return made


def succeed(made: Any) -> None:
    made.heartbeat_failures[ADDRESS] = 0
    _forget_suspect(lambda *_: None, made, ADDRESS)


def test_a_healthy_prefill_keeps_its_address() -> None:
    made = manager()
    succeed(made)
    assert f"{ADDRESS}_0_0" in made.connection_pool
    assert ADDRESS in made.prefill_info_table


def test_one_failure_then_success_drops_only_that_address() -> None:
    made = manager()
    made.heartbeat_failures[ADDRESS] = 1
    succeed(made)
    assert list(made.connection_pool) == ["10.0.0.2:8998_0_0"]
    assert list(made.prefill_info_table) == ["10.0.0.2:8998"]


def test_an_address_fetched_anew_is_kept() -> None:
    made = manager()
    made.heartbeat_failures[ADDRESS] = 1
    succeed(made)
    made.prefill_info_table[ADDRESS] = "restarted"
    succeed(made)
    assert made.prefill_info_table[ADDRESS] == "restarted"
