"""What of a body reaches the request that SGLang has made of it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from patches.http.router_fields import NAMES, PATHS, _add_fields, add


def made() -> SimpleNamespace:
    """As SGLang's converters leave a `GenerateReqInput`."""
    return SimpleNamespace(**dict.fromkeys(NAMES), sampling_params={"temperature": 0.5})


BODY = {
    "rid": "r1", "bootstrap_host": "127.0.0.1", "bootstrap_port": 9, "bootstrap_room": 7,
    "routed_dp_rank": 0, "disagg_prefill_dp_rank": 1, "custom_params": {"toolkit": {"a": "b"}},
    "messages": [], "sampling_params": {"temperature": 9},
}  # fmt: skip


def test_a_request_gets_the_router_s_fields_and_nothing_else() -> None:
    request = made()
    add(request, BODY)
    assert {name: getattr(request, name) for name in NAMES} == {n: BODY[n] for n in NAMES}
    assert request.sampling_params == {
        "temperature": 0.5, "custom_params": BODY["custom_params"]
    }  # fmt: skip


@pytest.mark.parametrize("body", [None, [], "text", {"custom_params": [1], "rid": None}])
def test_what_is_no_such_field_changes_nothing(body: Any) -> None:
    request = made()
    add(request, body)
    assert request == made()


def test_only_endpoints_without_such_fields_get_them() -> None:
    async def run(path: str) -> SimpleNamespace:
        async def original(manager: Any, obj: Any, request: Any) -> Any:
            yield obj

        async def body() -> dict[str, Any]:
            return BODY

        request = SimpleNamespace(url=SimpleNamespace(path=path), json=body)
        made_of = [each async for each in _add_fields(original, None, made(), request)]
        assert len(made_of) == 1
        return made_of[0]

    for path in PATHS:
        assert asyncio.run(run(path)).bootstrap_room == 7
    assert asyncio.run(run("/v1/chat/completions")) == made()
