"""Decisions on record: played again they come out the same, on whatever policy."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest

from toolkit.decisions import Recorded, replay
from toolkit.policies import Load, RequestView, WorkerView, make_policy, policy_names

POOL = 4096
NAMES = [*(n for n in policy_names() if n != "brh"), "brh@survival", "gimbal@0.5:0.1:100"]


def views(rng: random.Random) -> list[WorkerView]:
    def load() -> Load | None:
        if rng.random() < 0.1:
            return None
        used = rng.randrange(POOL + 500)
        return Load(
            running=rng.randrange(8), waiting=rng.randrange(3), used_tokens=used,
            total_tokens=POOL, waiting_tokens=rng.randrange(500),
            sent_requests=rng.randrange(3), sent_tokens=rng.randrange(300),
        )  # fmt: skip

    return [
        WorkerView("dp", dp_rank=rank, healthy=rng.random() < 0.9, inflight=rng.randrange(9),
                   inflight_tokens=rng.randrange(POOL), load=load(), slots=8)
        for rank in range(4)
    ]  # fmt: skip


def record(name: str, seed: int = 3, count: int = 200) -> list[str]:
    """What a policy does in a made-up traffic, as lines."""
    rng, sink = random.Random(f"{name}-{seed}"), io.StringIO()
    policy = Recorded(make_policy(name, seed), sink, seed)
    running: list[str] = []
    for n in range(count):
        workers = views(rng)
        request = RequestView(
            prompt_tokens=rng.randrange(1, 900), user=rng.choice([None, "ann", "bob"]),
            blocks=tuple(range(rng.randrange(4))), max_new_tokens=rng.choice([0, 40]),
            prompt_hash=rng.randrange(5), label=rng.choice([None, "code"]), now=n / 10,
        )  # fmt: skip
        decision = policy.choose(workers, request)
        if policy.inflight is None or decision is None:
            continue
        policy.inflight.sent(f"r{n}", workers[decision.index].key, request)
        running.append(f"r{n}")
        for rid in running[-6:]:
            policy.inflight.counted(rid, rng.randrange(1, 9))
        if len(running) > 8:
            policy.inflight.ended(running.pop(0), finished=rng.random() < 0.9)
        if n == count // 2:
            policy.inflight.lost(("dp", 1))
    return sink.getvalue().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_played_again_it_decides_the_same(name: str) -> None:
    played = replay(record(name))
    assert len(played) == 200
    assert [each for each in played if each.recorded != each.now] == []


def test_another_policy_does_not() -> None:
    """Or the comparison could not fail."""
    for name, other in (("br0", "round_robin"), ("gimbal", "shortest_queue")):
        assert any(each.recorded != each.now for each in replay(record(name), make_policy(other)))
    without = [line for line in record("brh@survival") if '"counted"' not in line]
    assert any(each.recorded != each.now for each in replay(without))


def test_a_process_that_was_started_again_begins_anew() -> None:
    played = replay([*record("gimbal"), *record("gimbal")])
    assert len(played) == 400
    assert [each for each in played if each.recorded != each.now] == []


def test_a_signature_survives() -> None:
    sink = io.StringIO()
    policy = Recorded(make_policy("shortest_queue"), sink)
    signature = np.array([0.6, 0.8], dtype=np.float32)
    policy.choose([WorkerView("a")], RequestView(signature=signature))
    (played,) = replay(sink.getvalue().splitlines())
    assert played.now == played.recorded


@pytest.mark.parametrize(
    "lines",
    [
        ["nonsense"],
        ['{"counted":["r",1]}'],
        ['{"policy":"br7","seed":0}'],
        ['{"policy":"br0","seed":0}', '{"choose":{}}'],
        ['{"policy":"br0","seed":0}', '{"counted":["r",1]}'],
        ['{"policy":"br0","seed":0}', "[]"],
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(lines: list[str]) -> None:
    with pytest.raises(ValueError, match=f"line {len(lines)} is no line of a recording"):
        replay(lines)
