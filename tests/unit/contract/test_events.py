"""The lines of a worker's event stream: what is written is read, and nothing else is believed."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.contract import VERSION, events, frames, headers, paths, placement, variables
from toolkit.contract.events import (
    Down,
    Experts,
    GaveWay,
    Hello,
    KvTransfer,
    LoadReading,
    NotAnEvent,
    OtherContract,
    Ping,
    Placed,
    PrefillDone,
    Records,
    Signature,
    Steps,
    decode,
    encode,
    greeting,
)

counts = st.integers(0, 2**40)
small = st.integers(0, 2**16 - 1)
tokens = st.integers(0, 2**31)
seconds = st.floats(0, 1e6)
EVENTS = st.one_of(
    st.builds(
        Hello,
        contract=st.just(VERSION),
        run=st.text(),
        role=st.sampled_from(["prefill", "decode", "null"]),
        dp_attention=st.sampled_from([None, True, False]),
        model=st.text(),
        experts=st.builds(Experts, small, small, small, st.booleans()),
        signature=st.none() | st.builds(Records, st.lists(small), small),
        max_running_requests=counts,
        patches=st.lists(st.text()).map(tuple),
    ),
    st.builds(PrefillDone, st.text(), small, tokens, tokens, st.none(), st.none() | counts, tokens),
    st.builds(KvTransfer, seconds, counts, tokens, st.text(), small, st.booleans()),
    st.builds(LoadReading, counts, counts, counts, counts, counts, st.none() | counts, small),
    st.builds(Steps, tokens, counts, counts, seconds, seconds, small),
    st.builds(GaveWay, st.sampled_from(["prompt", "answer"]), small, seconds, small),
    st.builds(Placed, counts),
    st.builds(Down, st.text()),
    st.builds(Ping, seconds),
)


@given(EVENTS)
def test_what_is_written_is_read(event: events.Event) -> None:
    line = encode(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line) == event


def test_the_names_on_the_wire_stay_as_they_were() -> None:
    """Workers and routers of one version may be of different days."""
    assert json.loads(encode(LoadReading(1, 2, 3, 4, 5, 6, 7))) == {
        "type": "load", "running": 1, "waiting": 2, "used_tokens": 3, "total_tokens": 4,
        "waiting_tokens": 5, "capacity_tokens": 6, "dp_rank": 7,
    }  # fmt: skip
    assert encode(Ping()) == b'{"type":"ping"}\n'
    assert json.loads(encode(Ping(2.5))) == {"type": "ping", "held_up": 2.5}
    signature = Signature(b"\x01\x02", 1.0, 9, True)
    assert json.loads(encode(PrefillDone("r", 1, 2, 3, signature, 4))) == {
        "type": "prefill_done", "rid": "r", "dp_rank": 1, "prompt_tokens": 2, "cached_tokens": 3,
        "signature": {"counts": "AQI=", "scale": 1.0, "tokens": 9, "complete": True}, "room": 4,
        "left": 0,
    }  # fmt: skip
    assert json.loads(encode(KvTransfer(0.5, 2, 3, "r", 1))) == {
        "type": "kv_transfer", "seconds": 0.5, "bytes": 2, "tokens": 3, "rid": "r", "dp_rank": 1,
        "ahead": False,
    }  # fmt: skip
    assert json.loads(encode(Steps(1, 2, 3, 4.0, 5.0, 6))) == {
        "type": "steps", "steps": 1, "requests": 2, "kv_tokens": 3, "seconds": 4.0,
        "distinct": 5.0, "dp_rank": 6, "new_tokens": 0,
    }  # fmt: skip
    assert (paths.EVENTS, paths.EXPERTS) == ("/toolkit/events", "/toolkit/experts")


@pytest.mark.parametrize("contract", [None, 0, VERSION + 1, "x", [1]])
def test_a_worker_of_another_version_is_refused_and_both_are_named(contract: Any) -> None:
    hello: dict[str, Any] = {"type": "hello", "run": "abc", "signature": {"new": "shape"}}
    line = json.dumps(hello if contract is None else hello | {"contract": contract}).encode()
    with pytest.raises(OtherContract) as found:
        decode(line)
    theirs = 0 if contract is None else contract
    assert f"version {theirs} of" in str(found.value)
    assert f"this is version {VERSION}" in str(found.value)
    known = greeting(line)
    assert known is not None and known.run == "abc"


@given(st.one_of(st.binary(), st.text().map(str.encode), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["type", "rid", "dp_rank", "running", "contract", "x"]), inner
    ),
).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_whatever_comes_is_an_event_or_none(line: bytes) -> None:
    try:
        assert isinstance(decode(line), events.Event)
    except OtherContract:
        assert greeting(line) is not None
    except NotAnEvent as error:
        assert isinstance(error.kind, str) and isinstance(error.rank, int)


@pytest.mark.parametrize(
    "line",
    [b'{"type":"secret"}', b'{"type":"load","running":"secret"}', b"secret", b'["secret"]'],
)
def test_what_is_said_of_a_bad_line_holds_nothing_of_it(line: bytes) -> None:
    with pytest.raises(NotAnEvent) as found:
        decode(line)
    assert "secret" not in str(found.value)


def test_a_bad_reading_says_whose_it_is() -> None:
    with pytest.raises(NotAnEvent) as found:
        decode(b'{"type":"load","dp_rank":3,"running":"x"}')
    assert (found.value.kind, found.value.rank) == ("load", 3)


def test_a_bad_signature_does_not_lose_the_rest() -> None:
    event = decode(b'{"type":"prefill_done","rid":"r","prompt_tokens":5,"signature":{"no":1}}')
    assert isinstance(event, PrefillDone) and event.prompt_tokens == 5


def test_frames_are_a_head_and_so_many_bytes() -> None:
    for head in (
        frames.ExpertsHead("r", "prefill", 0, 0, (1, 2, 3), 4, 5, True, 6.0),
        frames.StepsHead(0, 1.0, ("end",), (1, 1)),
        frames.FinishedHead(0, 1.0, ("end",), (1, 1)),
        frames.PingHead(),
    ):
        line, _, body = frames.encode(head, b"a\nb").partition(b"\n")
        assert body == b"a\nb"
        assert frames.decode_head(line) == msgspec.structs.replace(head, bytes=3)
    with pytest.raises(ValueError, match="not a frame"):
        frames.decode_head(b'{"type": "new"}')


def test_every_name_of_the_contract_is_its_own() -> None:
    for module, prefix in ((variables, "TOOLKIT_"), (headers, "x-toolkit-"), (paths, "/toolkit/")):
        named = {name: value for name, value in vars(module).items() if name.isupper()}
        if module is headers:  # others' names are in it as well, in lists of those that pass
            others = {headers.REQUEST_ID, *named.pop("TO_WORKER"), *named.pop("TO_CLIENT")}
            named = {name: value for name, value in named.items() if value not in others}
        assert named and all(value.startswith(prefix) for value in named.values())
        assert len(set(named.values())) == len(named)


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"load","running":%s}' % 2**64,
        '{"type":"load","used_tokens":-1}',
        '{"type":"load","running":%s}' % ("9" * 5000),
        '{"type":"load","dp_rank":65536}',
        '{"type":"steps","steps":1,"requests":1,"kv_tokens":1,"seconds":1e400,"distinct":0}',
        '{"type":"steps","steps":1,"requests":1,"kv_tokens":1,"seconds":NaN,"distinct":0}',
        '{"type":"steps","steps":1,"requests":1,"kv_tokens":1,"seconds":-1,"distinct":0}',
        '{"type":"kv_transfer","seconds":1,"bytes":1e300}',
        '{"type":"prefill_done","rid":"r","room":%s}' % 2**63,
        '{"type":"prefill_done","rid":"%s"}' % ("r" * 1025),
        '{"type":"down","reason":"%s"}' % ("r" * 5000),
        '{"type":"ping","held_up":1e18}',
        '{"type":"placed","serial":%s}' % 2**60,
    ],
    ids=lambda line: line[:60],
)  # fmt: skip
def test_what_is_out_of_bounds_is_no_event(line: str) -> None:
    with pytest.raises(NotAnEvent) as found:
        decode(line.encode())
    assert len(str(found.value)) < 200


@pytest.mark.parametrize(
    "theirs",
    ["9" * 4400, "[" * 900 + "]" * 900, '"' + "x" * 9000 + '"'],
    ids=["number", "depth", "text"],
)
def test_a_stranger_does_not_fill_the_message_about_it(theirs: str) -> None:
    line = f'{{"type":"hello","run":{theirs},"contract":{theirs}}}'.encode()
    try:
        decode(line)
    except OtherContract as error:
        assert len(str(error)) < 300
    except NotAnEvent as error:
        assert len(str(error)) < 300
    known = greeting(line)
    assert known is None or known.run == ""


@pytest.mark.parametrize("field", ["gpus", "moe_layers", "layers", "expert_bytes"])
def test_a_map_of_experts_is_bounded_too(field: str) -> None:
    state = {
        "serial": 1, "experts": 4, "moe_layers": [0], "gpus": 2, "gpus_per_node": 2,
        "dispatch": "static", "layers": {"0": [0, 1, 2, 3]},
    }  # fmt: skip
    assert placement.decode(json.dumps(state).encode()).gpus == 2
    wrong = {"gpus": 2**16, "moe_layers": [-1], "layers": {"0": [2**40]}, "expert_bytes": 2**70}
    with pytest.raises(ValueError, match=field):
        placement.decode(json.dumps(state | {field: wrong[field]}).encode())


def test_a_frame_says_no_more_bytes_than_a_reader_may_buffer() -> None:
    with pytest.raises(ValueError, match="bytes"):
        frames.decode_head(b'{"type":"ping","bytes":%d}' % (frames.FRAME_MAX + 1))
    with pytest.raises(ValueError, match="bytes"):
        frames.decode_head(b'{"type":"ping","bytes":-1}')
