"""A policy in the DP controller: what it is shown and told, and that it decides as elsewhere."""

from __future__ import annotations

import asyncio
import io
import random
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from patches.dp.balancer import FORGET_S, HEALTH_CHECK, Balancer
from patches.dp.loads import NAME
from patches.dp.progress import how
from patches.dp.request import request_view
from tests.present import present
from tests.unit.patches.dp.stand_ins import EPOCH, Req, Sampling, Snapshot
from toolkit.contract.events import LoadReading
from toolkit.decide.record import recorded
from toolkit.decide.replay import replay
from toolkit.policies import make_policy
from toolkit.router.known_workers import KnownWorkers
from toolkit.settings.router.config import RouterConfig

POOL = 4096


def ids(count: int, seed: int = 0) -> array[int]:
    return array("q", random.Random(seed).choices(range(4000), k=count))


def test_the_request_as_policies_see_it() -> None:
    view = request_view(Req(input_ids=ids(300)), 7.5)
    assert (view.prompt_tokens, view.max_new_tokens, view.min_new_tokens) == (300, 128, 0)
    assert (view.user, view.blocks, view.prompt_hash, view.now) == (None, (), None, 7.5)
    to_the_limit = request_view(Req(sampling_params=Sampling(9, ignore_eos=True)), 0.0)
    assert (to_the_limit.max_new_tokens, to_the_limit.min_new_tokens) == (9, 9)
    open_end = request_view(Req(sampling_params=Sampling(None, 4)), 0.0)
    assert (open_end.max_new_tokens, open_end.min_new_tokens) == (0, 4)


def test_embeddings_in_place_of_tokens() -> None:
    req = Req(input_ids=None, input_embeds=[[0.0]] * 12)
    view = request_view(req, 0.0, blocks=True, prompt_hash=True)
    assert (view.prompt_tokens, view.blocks, view.prompt_hash) == (12, (), None)


def test_the_user_is_the_routing_key_then_the_session_then_the_extra_key() -> None:
    def user(**who: Any) -> str | None:
        return request_view(Req(**who), 0.0, b"salt").user

    @dataclass
    class Session:
        id: str

    assert user() is None
    names = [
        user(extra_key="ann"),
        user(session_id="ann", extra_key="bob"),
        user(routing_key="ann", session_id="bob", extra_key="bob"),
    ]
    assert len({*names}) == 3 and None not in names and "ann" not in "".join(map(str, names))
    assert user(session_params=Session("ann")) == user(session_id="ann") == names[1]
    assert user(routing_key="ann") == names[2]


def test_equal_beginnings_have_equal_blocks() -> None:
    def blocks(tokens: array[int]) -> tuple[int, ...]:
        return request_view(Req(input_ids=tokens), 0.0, blocks=True).blocks

    head = ids(128)
    first, second = blocks(head + ids(70, 1)), blocks(head + ids(70, 2))
    assert len(first) == 3 and first[:2] == second[:2] and first[2] != second[2]
    assert blocks(head[:63]) == ()
    hashes = {request_view(Req(input_ids=head), 0.0, prompt_hash=True).prompt_hash for _ in "ab"}
    assert len(hashes) == 1 and None not in hashes


def test_a_request_that_names_its_rank_is_load_there() -> None:
    balancer = Balancer("br0", "plain", 2)
    balancer.look([Snapshot(dp_rank=rank) for rank in range(2)], 0.0)
    balancer.sent_elsewhere(Req(input_ids=ids(500)), 0, 0.1)
    assert balancer.choose(Req(rid="b"), [True, True], 0.1) == 1
    assert (balancer.placed, balancer.named) == ([0, 1], 1)


def test_a_burst_between_two_snapshots_is_spread() -> None:
    balancer = Balancer("br0", "plain", 4)
    balancer.look([Snapshot(dp_rank=rank) for rank in range(4)], 0.0)
    for n in range(40):
        assert balancer.choose(Req(rid=f"r{n}"), [True] * 4, 0.1) is not None
    assert balancer.placed == [10] * 4


def test_nobody_is_there() -> None:
    assert Balancer("gimbal", "plain", 2).choose(Req(), [False, False], 0.0) is None


def test_how_a_request_ended() -> None:
    assert how(None) == ""
    assert how({"type": "stop", "matched": 2}) == how({"type": "length"}) == "finished"
    assert how({"type": "abort", "message": "no"}) == "aborted"


def test_br_h_hears_of_tokens_and_ends() -> None:
    balancer = Balancer("brh@survival", "decode", 2)
    balancer.look([Snapshot(dp_rank=rank) for rank in range(2)], 0.0)
    lengths = balancer.policy.inflight
    rank = balancer.choose(Req(rid="a", input_ids=ids(100)), [True, True], 0.1)
    assert present(lengths).tokens((NAME, rank)) == 100  # type: ignore[arg-type]
    balancer.progressed([("a", 1, ""), ("a", 5, ""), ("a", 5, ""), ("unknown", 9, "finished")], 0.2)
    assert present(lengths).tokens((NAME, rank)) == 105  # type: ignore[arg-type]
    balancer.progressed([("a", 8, "finished")], 0.2)
    assert len(present(lengths)) == 0
    balancer.progressed([("a", 9, "")], 0.2)  # what came late
    assert len(present(lengths)) == 0 and balancer.describe()["in flight"] == 0


def test_probes_are_load_but_have_no_length() -> None:
    balancer = Balancer("brh", "plain", 2)
    assert balancer.choose(Req(rid=f"{HEALTH_CHECK}_1"), [True, True], 0.0) is not None
    assert len(present(balancer.policy.inflight)) == 0
    assert sum(balancer.placed) == 1


def test_requests_whose_end_was_not_seen_are_forgotten_when_their_rank_is_idle() -> None:
    balancer = Balancer("brh@survival", "plain", 1)
    balancer.look([Snapshot(EPOCH)], 0.0)
    balancer.choose(Req(rid="a"), [True], 0.1)
    idle = 1.0
    for tick in range(9):
        now = idle + tick
        busy = tick == 0
        snapshot = Snapshot(EPOCH + now, num_running_reqs=int(busy), received=1)
        balancer.look([snapshot], now)
        if now <= idle + 1 + FORGET_S:
            assert len(present(balancer.policy.inflight)) == 1, now
    assert len(present(balancer.policy.inflight)) == 0
    assert balancer.describe()["in flight"] == 0


def test_a_rank_that_restarts_has_lost_its_requests() -> None:
    balancer = Balancer("brh@survival", "plain", 2)
    balancer.look([Snapshot(EPOCH, dp_rank=rank, received=5) for rank in range(2)], 0.0)
    for n in range(4):
        balancer.choose(Req(rid=f"r{n}"), [True, True], 0.1)
    assert len(present(balancer.policy.inflight)) == 4
    balancer.look([Snapshot(EPOCH + 1, dp_rank=1, received=1)], 1.0)
    assert len(present(balancer.policy.inflight)) == balancer.placed[0] < 4
    assert balancer.describe()["readings"] == {"restart": 1}


class Server:
    """Ranks that hold what they were sent for a while; snapshots as SGLang would publish them."""

    def __init__(self, ranks: int) -> None:
        self.held: list[list[tuple[str, int, float]]] = [[] for _ in range(ranks)]
        self.sent = [0] * ranks

    def send(self, rank: int, rid: str, tokens: int, until: float) -> None:
        self.held[rank].append((rid, tokens, until))
        self.sent[rank] += 1

    def step(self, now: float) -> tuple[list[Snapshot], list[str]]:
        """What all ranks publish, and who has ended."""
        ended, snapshots = [], []
        for rank, held in enumerate(self.held):
            ended += [rid for rid, _, until in held if until <= now]
            held[:] = [each for each in held if each[2] > now]
            used = min(POOL, sum(tokens for _, tokens, _ in held))
            snapshots.append(
                Snapshot(
                    EPOCH + now, dp_rank=rank, num_running_reqs=len(held), num_used_tokens=used,
                    num_total_tokens=used, max_total_num_tokens=POOL, received=self.sent[rank],
                )
            )  # fmt: skip
        return snapshots, ended


def event_of(snapshot: Snapshot) -> LoadReading:
    """The same reading as `patches.streams.event_stream` gives it to the router."""
    return LoadReading(
        running=snapshot.num_running_reqs,
        waiting=snapshot.num_waiting_reqs,
        used_tokens=snapshot.num_used_tokens,
        total_tokens=snapshot.num_total_tokens,
        waiting_tokens=snapshot.num_waiting_uncached_tokens,
        capacity_tokens=snapshot.max_total_num_tokens,
    )


HOMES = ["br0", "brh@survival", "gimbal", "gimbal@0.3:0.05:100", "shortest_queue", "least_tokens",
         "round_robin", "power_of_two", "random"]  # fmt: skip


@pytest.mark.parametrize("name", HOMES)
def test_router_and_controller_decide_alike(name: str) -> None:
    """The same requests and readings through the router's books and through the controller's."""

    async def play() -> tuple[list[int], list[str]]:
        ranks, rng = 3, random.Random(name)
        worker = {"name": "w", "role": "plain", "url": "http://127.0.0.1:1", "dp_size": ranks}
        known_workers = KnownWorkers(RouterConfig.model_validate({"workers": [worker]}))
        books = known_workers.workers[0].ranks
        known_workers.workers[0].slots = 16
        routers = make_policy(name)
        inflight = routers.inflight
        sink = io.StringIO()
        controller = Balancer(name, "plain", ranks, recorded(make_policy(name), sink))
        server, now, chosen = Server(ranks), 0.0, []
        generated: dict[str, int] = {}
        for tick in range(120):
            snapshots, ended = server.step(now)
            controller.look(snapshots, now)
            for rank, snapshot in zip(books, snapshots, strict=True):
                rank.read(event_of(snapshot), now)
            generated = {rid: tokens + 4 for rid, tokens in generated.items()}
            event = [(rid, n, "finished" if rid in ended else "") for rid, n in generated.items()]
            controller.progressed(event, now)
            for rid, _, end in event if inflight is not None else ():
                present(inflight).counted(rid, 4)
                if end:
                    present(inflight).ended(rid)
            generated = {rid: n for rid, n in generated.items() if rid not in ended}
            for n in range(rng.randrange(4)):
                at = now + 0.01 * (n + 1)
                req = Req(
                    f"{tick}-{n}", ids(rng.randrange(10, 700), n),
                    routing_key=rng.choice([None, "ann", "bob", "cy"]),
                )  # fmt: skip
                view = request_view(req, at)
                decision = routers.choose([rank.view(at, True) for rank in books], view)
                got = controller.choose(req, [True] * ranks, at)
                assert decision is not None and decision.index == got, f"tick {tick}, request {n}"
                books[got].ledger.begin(view.prompt_tokens, at)
                if inflight is not None:
                    inflight.sent(req.rid, ("w", got), view)
                generated[req.rid] = 0
                server.send(got, req.rid, view.prompt_tokens, now + rng.uniform(0.2, 3.0))
                chosen.append(got)
            now += 0.1
        return chosen, sink.getvalue().splitlines()

    chosen, recording = asyncio.run(play())
    assert len(chosen) > 100 and len(Counter(chosen)) == 3
    # And a third home, which has only what was written down.
    played = replay(recording)
    assert [each.now.index for each in played if each.now is not None] == chosen
    assert [each for each in played if each.differs] == []
