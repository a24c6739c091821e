"""A finished prefill is not released before its KV is sent, as SGLang from 0.5.22 on would do."""

from types import SimpleNamespace
from typing import Any

import pytest

from patches.pd import parked


def scheduler() -> Any:
    return SimpleNamespace(
        disagg_prefill_inflight_queue=["sending", "waits", "late"], waiting_queue=[], chunked="half"
    )


def release(it: Any, req: Any) -> None:
    """As `optimistic_release_and_requeue`."""
    it.waiting_queue.append(req)


def look(it: Any) -> list[str]:
    """As `process_disagg_prefill_inflight_queue` of 0.5.22 with no slot free."""
    done, undone = [], []
    for req in it.disagg_prefill_inflight_queue:
        if req == "sending":
            done.append(req)
        elif req == "waits":
            parked._keep(release, it, req)
        else:
            undone.append(req)
    it.disagg_prefill_inflight_queue = undone
    return done


def test_finished_prompts_stay_where_they_are() -> None:
    it = scheduler()
    for _ in range(2):
        done = parked._put_back(look, it)
    assert done == []
    assert sorted(it.disagg_prefill_inflight_queue) == ["late", "waits"]
    assert it.waiting_queue == []


def test_a_prompt_that_is_not_through_goes_back_as_before() -> None:
    it = scheduler()
    parked._put_back(look, it)
    parked._keep(release, it, it.chunked)
    assert it.waiting_queue == ["half"]


def test_a_look_that_fails_loses_nobody() -> None:
    it = scheduler()

    def broken(it: Any) -> None:
        it.disagg_prefill_inflight_queue.remove("waits")
        parked._keep(release, it, "waits")  # type: ignore[arg-type]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        parked._put_back(broken, it)
    assert "waits" in it.disagg_prefill_inflight_queue
    parked._keep(release, it, it.chunked)
    assert it.waiting_queue == ["half"]
