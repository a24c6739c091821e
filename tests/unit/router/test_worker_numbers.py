"""Whatever a worker says, the router's pages about it can be read, and policies get sane loads."""

import asyncio
import json
import math
from time import monotonic
from typing import Any, get_args

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.kernels import examples
from toolkit.contract import VERSION
from toolkit.contract.events import Event
from toolkit.router.app import RouterApp
from toolkit.router.events import Watcher
from toolkit.router.failure import failure_in, failure_of
from toolkit.router.relay import Relay
from toolkit.router.splitting import parse
from toolkit.router.upstream import Call
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.worker import WorkerConfig

WORKERS = (
    WorkerConfig(name="p", role="prefill", url="http://127.0.0.1:1", bootstrap_port=1),
    WorkerConfig(name="d", role="decode", url="http://127.0.0.1:1", dp_size=2),
)
FIELDS = {kind.__struct_config__.tag: kind.__struct_fields__ for kind in get_args(Event)}
"""By kind of event: all its fields."""
LIKELY = st.sampled_from([0, 1, 2, 7, 4096, 0.5, 2**31, 2**40, 2**53, True, None, "x", VERSION])
EDGES = st.sampled_from([
    -1, -(2**63), 2**62, 2**63, 2**64, 10**30, 10**400, 1e308, -0.0, 5e-324, math.inf, -math.inf,
    math.nan, "9" * 50, [], {}, [[[]]], {"a": {}},
])  # fmt: skip
WILD = (
    st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(max_size=20)
    | st.text(min_size=2000, max_size=2010)
    | st.lists(st.integers(-9, 2**70), max_size=5)
)
VALUES = LIKELY | EDGES | WILD


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """An event of some kind, most of its fields as they should be."""
    kind = draw(st.sampled_from([*FIELDS, *["load", "steps"] * 3]))
    told: dict[str, Any] = {"type": kind}
    if kind == "hello":
        told |= {"contract": VERSION, "max_running_requests": 8}
    if kind == "steps":
        told |= {"steps": 2**31, "requests": 2**53, "kv_tokens": 2**53, "seconds": 1, "distinct": 1}
    if kind == "gave_way":
        told |= {"kind": "prompt"}
    if kind == "kv_transfer":
        told |= {"seconds": 0.1, "bytes": 2**53}
    for name in draw(st.lists(st.sampled_from(FIELDS[kind]), max_size=6)):
        told[name] = draw(VALUES)
    return json.dumps(told).encode()


async def test_work_that_stood_still_is_counted_by_worker_and_kind() -> None:
    made = router()
    feed(made, 0, [
        b'{"type":"gave_way","kind":"prompt","requests":2,"seconds":0.25}',
        b'{"type":"gave_way","kind":"prompt","requests":1,"seconds":0.5}',
        b'{"type":"gave_way","kind":"walk","requests":1}',
    ])  # fmt: skip
    feed(made, 1, [b'{"type":"gave_way","kind":"answer","requests":3}'])
    _, text = await pages(made)
    assert 'toolkit_router_gave_way_total{kind="prompt",worker="p"} 3.0' in text
    assert 'toolkit_router_gave_way_seconds_total{kind="prompt",worker="p"} 0.75' in text
    assert 'toolkit_router_gave_way_total{kind="answer",worker="d"} 3.0' in text


def router() -> RouterApp:
    return RouterApp(RouterConfig(workers=WORKERS, decode_policy="shortest_queue"))


def feed(made: RouterApp, worker: int, said: list[bytes]) -> None:
    """As its event stream brings it."""
    watcher = Watcher(
        made.control.known_workers.workers[worker], made.control.known_workers, made.config
    )
    hello = {"type": "hello", "contract": VERSION, "max_running_requests": 8}
    watcher._feed(b"\n".join([json.dumps(hello).encode(), *said, b""]))


async def pages(made: RouterApp) -> tuple[dict[str, Any], str]:
    async with TestServer(made.app()) as server, aiohttp.ClientSession() as http:
        async with http.get(server.make_url("/workers")) as answer:
            assert answer.status == 200
            table = json.loads(await answer.text(), parse_constant=_refuse)
        async with http.get(server.make_url("/metrics")) as answer:
            assert answer.status == 200
            return table, await answer.text()


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(lines(), min_size=1, max_size=12), st.lists(lines(), max_size=4))
def test_pages_about_workers_hold_whatever_they_say(
    decode: list[bytes], prefill: list[bytes]
) -> None:
    async def check() -> None:
        made = router()
        feed(made, 0, prefill)
        feed(made, 1, decode)
        now = monotonic()
        for worker in made.control.known_workers.workers:
            for rank in worker.ranks:
                load = rank.load(now)
                for number in () if load is None else (load.running, load.used_tokens):
                    assert 0 <= number < 2**62
                rank.view(now, usable=True)
        table, text = await pages(made)
        for row in table["workers"]:
            assert _numbers_are_sane(row), row
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                assert not math.isnan(sample.value), sample

    asyncio.run(check())


def _numbers_are_sane(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_numbers_are_sane, value.values()))
    # `waiting_tokens` is a difference: below 0 where a reading contradicts itself, which policies
    # see as such.
    return not isinstance(value, (int, float)) or -(2**41) <= value <= 2**63


async def test_sums_stay_where_json_can_hold_them() -> None:
    """An event with the largest numbers that are taken, again and again."""
    event = {
        "type": "steps", "steps": 2**31, "requests": 2**53, "kv_tokens": 2**53,
        "seconds": 1e9, "distinct": 2.0**53,
    }  # fmt: skip
    made = router()
    feed(made, 1, [json.dumps(event).encode()] * 5000)
    table, _ = await pages(made)
    steps = table["workers"][1]["steps"]
    assert steps["requests"] == 2**62
    assert steps["steps"] == 5000 * 2**31


@pytest.mark.parametrize("number", [2**64, -1, 10**400], ids=["64 bits", "below 0", "400 digits"])
async def test_a_reading_out_of_bounds_is_none(number: int) -> None:
    """The rank has no load then, and policies go by what the router has sent there."""
    made = router()
    good = {"type": "load", "running": 3, "total_tokens": 100}
    feed(made, 1, [json.dumps(good).encode()])
    rank = made.control.known_workers.workers[1].ranks[0]
    assert rank.load(monotonic()) is not None
    feed(made, 1, [json.dumps(good | {"used_tokens": number}).encode()])
    assert rank.load(monotonic()) is None


@pytest.mark.parametrize("code", [200, 0, -1, 700, 2**70, True, "500", None, [], {}, 1e300])
def test_a_failure_has_the_status_of_an_error(code: Any) -> None:
    for told in (
        {"error": {"message": "m", "code": code}},
        {"meta_info": {"finish_reason": {"type": "abort", "status_code": code}}},
    ):
        data = b"data: " + json.dumps(told).encode() + b"\n\n"
        found = failure_of(data, "generate")
        assert found is None or found.status == 500
    good = failure_of(b'data: {"error": {"message": "m", "code": 429}}\n\n', "generate")
    assert good is not None and good.status == 429


@pytest.mark.parametrize(
    ("endpoint", "body", "found"),
    [
        ("completions", {"error": {"message": "m", "code": 503}}, (503, "m", False)),
        ("chat", {"object": "error", "message": "m", "code": 400}, (400, "m", False)),
        ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
         (503, "m", False)),
        ("chat", {"choices": [{"finish_reason": "abort"}]}, (500, None, True)),
        ("chat", {"choices": [{"finish_reason": "abort"}], "usage": {"completion_tokens": 3}},
         None),
        ("chat", {"choices": [{"message": {"content": "abort"}, "finish_reason": "stop"}]}, None),
        ("chat", {"choices": [], "note": "abort"}, None),
        ("chat", {"choices": 1, "note": "abort"}, None),
        ("completions", {"error": None, "note": "abort"}, None),
        ("generate", {"meta_info": {"finish_reason": {"type": "abort"}}}, (500, None, True)),
        ("generate", {"meta_info": {"finish_reason": {"type": "abort"}, "completion_tokens": 2}},
         None),
        ("generate", {"meta_info": {"finish_reason": {"type": "abort", "status_code": 504,
                                                      "message": "m"}, "completion_tokens": 2}},
         (504, "m", False)),
        ("generate", {"meta_info": "abort"}, None),
        ("responses", {"status": "failed", "error": {"message": "KV transfer"}},
         (500, "KV transfer", False)),
        ("responses", {"status": "failed", "error": {"message": "too long"}}, None),
        ("rerank", ["abort"], None),
    ],
)  # fmt: skip
def test_an_answer_of_200_may_be_a_failure(
    endpoint: Any, body: Any, found: tuple[int, str | None, bool] | None
) -> None:
    failure = failure_in(json.dumps(body, separators=(",", ":")).encode(), endpoint)
    if found is None:
        assert failure is None
        return
    status, message, aborted = found
    assert failure is not None
    assert (failure.status, failure.aborted) == (status, aborted)
    assert message in (None, failure.message)


@given(st.binary(max_size=200), st.sampled_from(["chat", "generate", "messages", "responses"]))
def test_no_answer_breaks_whoever_looks_for_a_failure_in_it(raw: bytes, endpoint: Any) -> None:
    for start in (b'{"error"', b'{"error":', b'{"object":"error"', b'"abort"', b'"failed"', b""):
        failure_in(start + raw, endpoint)


@pytest.mark.parametrize("ids", [b"-1", b"1.5", b"x", b"1234567890", b"9" * 5000, b"1,2"])
async def test_ids_of_tokens_are_numbers_of_a_vocabulary(ids: bytes) -> None:
    class Nowhere:
        def write(self, events: bytes) -> None:
            pass

        def join(self, relay: Relay) -> None:
            pass

    sub_request = parse("/generate", b'{"text":"a","stream":true}').sub_requests[0]
    relay = Relay(sub_request, Nowhere())
    relay.begin(Call("w", (b"",), None), hold=False)
    relay.feed(b': 11 12\ndata: {"text":"a"}\n\n')
    assert relay.known_ids() == [11, 12]
    relay.feed(b": %b" % ids + b'\ndata: {"text":"ab"}\n\n')
    with pytest.raises(ValueError, match="that are none"):
        relay.known_ids()
