"""Which first tokens a prefill worker tells, on SGLang's own requests."""

import pytest

from tests.sglang_python import found_by

CODE = """
import json
from array import array
from types import SimpleNamespace
from sglang.srt import runtime_context
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.sampling.sampling_params import SamplingParams
from patches.pd import first_token

runtime_context.get_parallel = lambda: SimpleNamespace(pp_size=1)

class Tokenizer:
    eos_token_id, additional_stop_token_ids = 2, None
    def encode(self, text, **_): return [ord(each) for each in text]
    def decode(self, ids, **_): return "".join(chr(int(i)) for i in ids)

def req(token=104, **params):
    sampling = SamplingParams(max_new_tokens=1, **params)
    sampling.normalize(Tokenizer())
    more = {"eos_token_ids": {3}, "vocab_size": 200, "stream": True}
    one = Req("r", "", array("q", [97, 98]), sampling, **more)
    one.tokenizer = Tokenizer()
    one.output_ids = array("q", [token])
    return one

def spec(on): return SimpleNamespace(spec_algorithm=SimpleNamespace(is_none=lambda: not on))

def ask(one, drafts=False):
    before = (one.finished_reason, one.finished_len, list(one.output_ids),
              one.sampling_params.max_new_tokens)
    held = first_token.held_back(spec(drafts), one)
    after = (one.finished_reason, one.finished_len, list(one.output_ids),
             one.sampling_params.max_new_tokens)
    return held, before == after

class Ended:
    def is_terminated(self): return True

found = {
    "plain": ask(req()),
    "end of text": ask(req(2)),
    "the model's end": ask(req(3)),
    "ignored": ask(req(2, ignore_eos=True)),
    "stop token": ask(req(104, stop_token_ids=[104])),
    "stop string": ask(req(104, stop="h")),
    "another stop string": ask(req(104, stop="x")),
    "stop regex": ask(req(104, stop_regex="[gh]")),
    "no token": ask(req(200)),
    "less than none": ask(req(-1)),
    "drafts": ask(req(), drafts=True),
}
one = req(); one.grammar = Ended(); found["grammar"] = ask(one)
one = req(); one.to_finish = FINISH_ABORT(); found["aborted"] = ask(one)
one = req(); one.beam_group = object(); found["beam"] = ask(one)
one = req(); one.output_ids.append(5); found["second"] = ask(one)

class Scheduler:
    spec_algorithm = SimpleNamespace(is_none=lambda: True)
    def __init__(self):
        self.disagg_prefill_inflight_queue, self.streamed, self.order = [], [], []
        self.output_streamer = self
    def stream_output(self, reqs, logprob):
        self.order.append("told")
        self.streamed += [(r.rid, logprob) for r in reqs]
    def handle_bootstrap_failure(self, req): self.order.append("failed")

scheduler = Scheduler()
told, quiet, held = req(), req(), req(2)
told.rid, quiet.rid, held.rid = "told", "quiet", "held"
quiet.stream = False
def finish(s, batch, result): s.disagg_prefill_inflight_queue += [told, quiet, held]
first_token._tell_first_tokens(finish, scheduler, None, None)
found["streamed"] = scheduler.streamed
for each in (told, held):
    first_token._never_again(lambda s, r: s.order.append("again"), scheduler, each)
found["order"] = scheduler.order
print(json.dumps(found))
"""

HELD = {
    "plain": "",
    "end of text": "ends",
    "the model's end": "ends",
    "ignored": "",
    "stop token": "ends",
    "stop string": "ends",
    "another stop string": "",
    "stop regex": "ends",
    "no token": "outside the vocabulary",
    "less than none": "outside the vocabulary",
    "drafts": "",
    "grammar": "ends",
    "aborted": "ending",
    "beam": "beam",
    "second": "not the first",
}


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    return found_by(CODE)


@pytest.mark.parametrize("case", HELD)
def test_a_token_that_may_not_stay_is_held_back(found: dict[str, object], case: str) -> None:
    said, unchanged = found[case]  # type: ignore[misc]
    assert HELD[case] in said if HELD[case] else said == ""  # type: ignore[has-type]
    assert unchanged  # type: ignore[has-type]


def test_streams_are_told_once_and_never_run_again(found: dict[str, object]) -> None:
    assert found["streamed"] == [["told", False]]
    assert found["order"] == ["told", "failed", "again"]
