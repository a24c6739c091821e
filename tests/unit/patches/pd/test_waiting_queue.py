"""The waiting queue's hook on SGLang's own SchedulePolicy, Req and radix cache, in one process of
its own (importing SGLang takes some seconds)."""

from typing import Any

import pytest

from tests.sglang_python import found_by

SCENARIOS = r"""
import json, random
from array import array
from types import SimpleNamespace
import patches
from patches.environment import installed
patches.register()
import torch
from patches.pd import waiting_queue
from patches.scheduler_state import current
from patches.pd.waiting_order import arrived
from sglang.srt.managers import schedule_policy
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams

rng = random.Random(5)
tokens = lambda count: rng.choices(range(4000), k=count)
forget = lambda *slots, **flags: None
allocator = SimpleNamespace(
    device="cpu", available_size=lambda: 10**6, free=forget, free_segment=forget)


def cache(kind=UnifiedRadixCache):
    return kind(CacheInitParams(
        disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=allocator,
        page_size=1, tree_components=(ComponentType.FULL,)))


def add(tree, ids):
    tree.insert(InsertParams(key=RadixKey(array("q", ids)), value=torch.arange(len(ids))))


def req(rid, ids, priority=None):
    made = Req(rid, "", array("q", ids), SamplingParams(max_new_tokens=4))
    made.priority = priority
    return made


def policy(tree, prioritised=False, low_first=False, kind="fcfs"):
    return SchedulePolicy(kind, tree, False, prioritised, low_first)


def order(chosen, reqs, **counter):
    queue = list(reqs)
    chosen.calc_priority(queue, None, **counter)
    return [each.rid for each in queue]


found = {}
head = tokens(500)
full, empty = cache(), cache()
add(full, head)
waiting = lambda: [req("b", tokens(200)), req("a", head + tokens(100)), req("c", tokens(50))]
found["cached"] = order(policy(full), waiting(), processed_tokens=0)
found["uncached"] = order(policy(empty), waiting(), processed_tokens=0)
found["no cache"] = order(policy(cache(ChunkCache)), waiting(), processed_tokens=0)
found["no prompts"] = order(policy(full), waiting())
for name, low in (("high", False), ("low", True)):
    reqs = [req("a", tokens(9), 1), req("b", tokens(400), 2), req("c", tokens(90), 2)]
    found[name] = order(policy(full, True, low), reqs, processed_tokens=0)
    found[name + " ignored"] = order(policy(full, False, low), reqs, processed_tokens=0)

long, short = req("long", tokens(900)), req("short", tokens(9))
scheduler = SimpleNamespace()
waiting_queue._note_arrival(lambda *_: None, scheduler, long)
current().get(waiting_queue.WaitingState).clock = 4999
waiting_queue._note_arrival(lambda *_: None, scheduler, short)
found["young"] = order(policy(empty), [long, short], processed_tokens=0)
current().get(waiting_queue.WaitingState).clock = 5000
found["aged"] = order(policy(empty), [long, short], processed_tokens=0)

# Four hundred wait: more than SGLang's cache-aware policies would look at.
matched = []
original = schedule_policy.match_prefix_for_req
def counting(tree, each, **flags):
    matched.append(each.rid)
    return original(tree, each, **flags)
schedule_policy.match_prefix_for_req = counting
tree = cache()
heads = [tokens(300) for _ in range(8)]
for each in heads[:4]:
    add(tree, each)
many = [req(f"{n:03}", heads[n % 8][: rng.randint(50, 300)] + tokens(rng.randint(5, 600)))
        for n in range(400)]
chosen, rounds = policy(tree), []
for number in range(4):
    before = len(matched)
    last = order(chosen, many, processed_tokens=1000)
    rounds.append(len(matched) - before)
found["matches"] = rounds
found["four hundred"] = last == [each.rid for each in sorted(
    many, key=lambda each: (len(each.origin_input_ids) - each.num_matched_prefix_tokens, each.rid))]
found["hits"] = sum(each.num_matched_prefix_tokens > 0 for each in many)
schedule_policy.match_prefix_for_req = original


# Two ranks, each with its own cache and copy of the queue, one of them arranged at random: passes
# insert what they computed, and evict.
class Rank:
    def __init__(self, shuffled):
        self.tree, self.shuffled = cache(), shuffled
        self.policy, self.queue, self.done, self.evicted = policy(self.tree), [], 0, []

    def step(self, new, clock, evict):
        current().get(waiting_queue.WaitingState).clock = clock
        for rid, ids in new:
            self.queue.append(req(rid, ids))
            arrived(self.queue[-1], clock)
        if self.shuffled:
            rng.shuffle(self.queue)
        self.policy.calc_priority(self.queue, None, processed_tokens=self.done)
        seen = [(each.rid, each.num_matched_prefix_tokens) for each in self.queue]
        for each in self.queue[:6]:
            add(self.tree, list(each.origin_input_ids))
            self.done += len(each.origin_input_ids) - each.num_matched_prefix_tokens
        del self.queue[:6]
        if evict:
            self.evicted.append(self.tree.evict(EvictParams(num_tokens=evict)))
        return seen

ranks = Rank(False), Rank(True)
heads = [tokens(400) for _ in range(12)]
same, reordered = True, 0
for number in range(60):
    new = []
    for n in range(9 if number < 50 else 0):
        ids = rng.choice(heads)[: rng.randint(1, 400)] + tokens(rng.randint(1, 300))
        new.append((f"{number:02}.{n}", ids))
    evict = 1500 if number % 5 == 4 else 0
    one, two = (rank.step(new, 400 * number, evict) for rank in ranks)
    same &= one == two
    reordered += [rid for rid, _ in one] != sorted(rid for rid, _ in one)
found["ranks"] = [same, ranks[0].done == ranks[1].done, reordered]
found["evicted"] = sum(each.num_tokens_evicted for each in ranks[0].evicted)
found["installed"] = "waiting_queue" in installed()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return found_by(SCENARIOS, TOOLKIT_WAITING="sjf:5", OMP_NUM_THREADS="1")


def test_the_hook_is_in(found: dict[str, Any]) -> None:
    assert found["installed"]


def test_by_what_the_radix_cache_does_not_have(found: dict[str, Any]) -> None:
    assert found["cached"] == ["c", "a", "b"]
    assert found["uncached"] == ["c", "b", "a"]
    assert found["no cache"] == ["c", "b", "a"]


def test_queues_that_wait_for_no_prefill_stay_as_they_are(found: dict[str, Any]) -> None:
    assert found["no prompts"] == ["b", "a", "c"]


def test_priorities_first_where_the_server_has_them(found: dict[str, Any]) -> None:
    assert found["high"] == ["c", "b", "a"]
    assert found["low"] == ["a", "c", "b"]
    assert found["high ignored"] == found["low ignored"] == ["a", "c", "b"]


def test_a_long_one_goes_first_once_it_is_old(found: dict[str, Any]) -> None:
    assert found["young"] == ["short", "long"]
    assert found["aged"] == ["long", "short"]


def test_hundreds_wait_and_a_round_matches_a_bounded_number(found: dict[str, Any]) -> None:
    assert found["matches"] == [128, 128, 128, 16]
    assert found["four hundred"]
    assert found["hits"] == 200


def test_ranks_that_see_the_same_have_the_same_order(found: dict[str, Any]) -> None:
    same, computed, reordered = found["ranks"]
    assert same and computed
    assert reordered > 30 and found["evicted"] > 5000
