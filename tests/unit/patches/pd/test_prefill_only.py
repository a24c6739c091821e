"""A request for one token ends on its prefill worker, on SGLang's own requests."""

from typing import Any

import pytest

from tests.sglang_python import found_by

CODE = """
import json
from array import array
from types import SimpleNamespace
from sglang.srt import runtime_context
from sglang.srt.disaggregation import prefill
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache import common
from sglang.srt.sampling.sampling_params import SamplingParams
from patches.pd import first_token, prefill_only
from toolkit.contract.prefill_only import HOST

prefill_only._check_host()
released = []
common.release_kv_cache = lambda req, tree: released.append(req.rid)
prefill.maybe_release_metadata_buffer = lambda req, allocator: released.append("buffer " + req.rid)

class Tokenizer:
    eos_token_id, additional_stop_token_ids = 2, None
    def encode(self, text, **_): return [ord(each) for each in text]
    def decode(self, ids, **_): return "".join(chr(int(i)) for i in ids)

def req(rid, host=HOST, room=7, token=104, **params):
    sampling = SamplingParams(max_new_tokens=1, **params)
    sampling.normalize(Tokenizer())
    more = {"eos_token_ids": {3}, "vocab_size": 200, "bootstrap_host": host, "bootstrap_room": room}
    one = Req(rid, "", array("q", [97, 98]), sampling, **more)
    one.tokenizer = Tokenizer()
    one.output_ids = array("q", [token])
    one.pending_bootstrap = True
    return one

reqs = [req("length"), req("end", token=2), req("string", stop="h"), req("ordinary", "127.0.0.1"),
        req("probe", room=0)]

def run(stages):
    runtime_context.get_parallel = lambda: SimpleNamespace(pp_size=stages)
    order = []
    scheduler = SimpleNamespace(
        disagg_prefill_inflight_queue=[], req_to_metadata_buffer_idx_allocator=None,
        tree_cache=SimpleNamespace(finish=lambda handle, outcome: order.append(outcome.name)),
        output_streamer=SimpleNamespace(
            stream_output=lambda reqs, logprob: order.append([r.rid for r in reqs])))
    original = lambda s, batch, result: s.disagg_prefill_inflight_queue.extend(reqs)
    prefill_only._finish_at_once(original, scheduler, None, None)
    return order, [r.rid for r in scheduler.disagg_prefill_inflight_queue]

stages = run(2), list(released)
order, waiting = run(1)
kept = []
for one in reqs:
    prefill_only._keep_its_prompt(lambda q, r, n: kept.append(not r.skip_radix_cache_insert),
                                  None, one, 1)
spec = SimpleNamespace(spec_algorithm=SimpleNamespace(is_none=lambda: True))
print(json.dumps({
    "stages": stages, "order": order, "waiting": waiting, "released": released, "kept": kept,
    "reasons": [r.finished_reason and r.finished_reason.to_json() for r in reqs],
    "told": first_token.held_back(spec, req("told")),
}))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return found_by(CODE)


def test_each_ends_as_a_decode_worker_would_end_it(found: dict[str, Any]) -> None:
    length, end, string, ordinary, probe = found["reasons"]
    assert length == {"type": "length", "length": 1}
    assert (end["type"], end["matched"]) == ("stop", 2)
    assert (string["type"], string["matched"]) == ("stop", "h")
    assert ordinary is probe is None


def test_what_is_done_is_told_and_freed_and_nothing_else(found: dict[str, Any]) -> None:
    names = ["length", "end", "string"]
    assert found["order"] == ["SUCCESS"] * 3 + [names]
    assert found["released"] == names + [f"buffer {name}" for name in names]
    assert found["waiting"] == ["ordinary", "probe"]


def test_its_prompt_may_be_cached(found: dict[str, Any]) -> None:
    # SGLang's own probe stays out of it.
    assert found["kept"] == [True, True, True, True, False]


def test_with_pipeline_stages_it_is_sglangs(found: dict[str, Any]) -> None:
    (order, waiting), released = found["stages"]
    assert (order, released) == ([], [])
    assert len(waiting) == 5


def test_its_token_is_told_once(found: dict[str, Any]) -> None:
    assert "only one" in found["told"]
