"""Decisions on record: played again they come out the same, on whatever policy."""

import io
import random
from pathlib import Path

import numpy as np
import pytest

from toolkit.decide.record import recorded
from toolkit.decide.replay import main, replay
from toolkit.policies import (
    PUBLISHED,
    Load,
    RequestView,
    WorkerView,
    make_policy,
    policy_names,
)
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.expert_map import ExpertMap
from toolkit.policies.support.inflight_signatures import InflightSignatures

POOL = 4096
RECORDINGS = Path(__file__).parent / "recordings"
NAMES = [*(n for n in policy_names() if n != "brh"), "brh@survival", "gimbal@0.5:0.1:100"]
NAMES += [*PUBLISHED, "gimbal@paper:0.5:0.1:100", "pooled@gimbal", "unpooled@brh@survival"]


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
    policy = recorded(make_policy(name, seed), sink, seed)
    following = policy.follow()
    running: list[str] = []
    for n in range(count):
        workers = views(rng)
        request = RequestView(
            prompt_tokens=rng.randrange(1, 900), user=rng.choice([None, "ann", "bob"]),
            blocks=tuple(range(rng.randrange(4))), max_new_tokens=rng.choice([0, 40]),
            prompt_hash=rng.randrange(5), label=rng.choice([None, "code"]), now=n / 10,
        )  # fmt: skip
        decision = policy.choose(workers, request)
        if n == 2 * count // 3:
            policy.replaced("dp")
        if not policy.needs.lengths or decision is None:
            continue
        chosen = workers[decision.index]
        following.sent(f"r{n}", chosen.key, chosen.group, request)
        running.append(f"r{n}")
        for rid in running[-6:]:
            following.counted(rid, rng.randrange(1, 9))
        if len(running) > 8:
            following.ended(running.pop(0), finished=rng.random() < 0.9)
        if n == count // 2:
            following.lost(("dp", 1))
    return sink.getvalue().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_played_again_it_decides_the_same(name: str) -> None:
    played = replay(record(name))
    assert len(played) == 200
    assert [each for each in played if each.differs] == []


@pytest.mark.parametrize(
    "name", ["br0", "brh@survival", "level", "composed", "br0@paper", "brh@paper"]
)
def test_rounds_come_out_the_same(name: str) -> None:
    rng, sink = random.Random(name), io.StringIO()
    policy = recorded(make_policy(name), sink)
    assert isinstance(policy, Assigner)
    following = policy.follow()
    for n in range(60):
        workers = views(rng)
        pool = [RequestView(prompt_tokens=rng.randrange(1, 900), now=n) for _ in range(6)]
        for made in policy.assign(workers, pool):
            at = workers[made.worker]
            following.sent(f"{n}-{made.request}", at.key, at.group, pool[made.request])
        following.stepped(("dp", n % 4), 3)
    played = replay(sink.getvalue().splitlines())
    assert len(played) == 60 and any(each.now for each in played)
    assert not any(each.differs for each in played)
    shifted = [
        line.replace('"used_tokens":', '"used_tokens":7') for line in sink.getvalue().splitlines()
    ]
    assert any(each.differs for each in replay(shifted))


def by_experts(name: str, tau: float) -> list[str]:
    """What a policy that follows experts does, as lines."""
    rng, sink = np.random.default_rng(0), io.StringIO()
    policy = recorded(make_policy(name, tau=tau), sink, tau=tau)
    assert policy.locality is not None
    rows = rng.random((3, 8), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    policy.locality.centroids = Centroids(rows, {("d", rank): rank for rank in range(3)})
    policy.locality.inflight_signatures = InflightSignatures(8)
    following = policy.follow()
    workers = [WorkerView("d", dp_rank=rank) for rank in range(3)]
    for n in range(80):
        signature = rng.random(8, dtype=np.float32)
        request = RequestView(signature=signature / np.linalg.norm(signature))
        decision = policy.choose(workers, request)
        assert decision is not None
        following.sent(f"r{n}", ("d", decision.index), ("d", decision.index), request)
        following.ended(f"r{n - 9}")
        if n == 40:
            policy.locality.centroids = Centroids(rows[::-1].copy(), {("d", 0): 0, ("d", 2): 1})
    return sink.getvalue().splitlines()


def test_eldr_with_its_centroids_and_inflight_signatures() -> None:
    """And without either it would decide otherwise."""
    lines = by_experts("eldr", 0.02)
    assert not any(each.differs for each in replay(lines))
    for kind in ('"sent"', '"centroids"'):
        assert any(each.differs for each in replay(line for line in lines if kind not in line[:12]))


@pytest.mark.parametrize("name", ["eldr@paper", "eldr@artifact"])
def test_a_published_rule_keeps_its_own_tau(name: str) -> None:
    """Whatever tau was in the configuration, and so stands in the recording; and it does not look
    at residents."""
    lines = by_experts(name, 0.02)
    assert '"tau":0.02' in lines[0].replace(" ", "")
    played = replay(lines)
    assert played and not any(each.differs for each in played)
    assert not any(each.differs for each in replay(x for x in lines if '"sent"' not in x[:12]))
    ours = [lines[0].replace(name, "eldr"), *lines[1:]]
    assert any(each.differs for each in replay(ours))


@pytest.mark.parametrize("file", sorted(RECORDINGS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_what_an_earlier_version_decided_in_real_traffic(file: Path) -> None:
    """Recorded on `cpu-dp` at 9a234c0, before policies had `needs`. Where slots were plenty the
    rule is another since then: ranks go by their load (`TwoStage`)."""
    played = replay(file.read_text().splitlines())
    kept = [each for each in played if "stage 1" not in str(each.recorded)]
    assert len(kept) >= 10
    assert not any(each.differs for each in kept)


def test_the_tool_counts_and_tells_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.jsonl"
    lines = record("br0")
    file.write_text("\n".join(lines))
    assert main([str(file)]) == 0
    assert "br0" in capsys.readouterr().out
    file.write_text("\n".join([lines[0].replace("br0", "round_robin"), *lines[1:]]))
    assert main([str(file)]) == 1
    assert f"{file}:" in capsys.readouterr().out


def test_another_policy_does_not() -> None:
    """Or the comparison could not fail."""
    for name, other in (("br0", "round_robin"), ("gimbal", "shortest_queue")):
        assert any(each.differs for each in replay(record(name), make_policy(other)))
    without = [line for line in record("brh@survival") if '"counted"' not in line]
    assert any(each.differs for each in replay(without))


def test_a_process_that_was_started_again_begins_anew() -> None:
    played = replay([*record("gimbal"), *record("gimbal")])
    assert len(played) == 400
    assert [each for each in played if each.differs] == []


def test_a_signature_survives() -> None:
    sink = io.StringIO()
    policy = recorded(make_policy("shortest_queue"), sink)
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
        ['{"policy":"br0","seed":0}', '{"counted":["r",1,2]}'],
        ['{"policy":"random","seed":0}', '{"assign":{},"made":[]}'],
        ['{"policy":"br0","seed":0}', "[]"],
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(lines: list[str]) -> None:
    with pytest.raises(ValueError, match=f"line {len(lines)} is no line of a recording"):
        replay(lines)


def test_a_path_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    for _ in range(2):
        recorded(make_policy("round_robin"), file).choose([WorkerView("a")], RequestView())
    played = replay(file.read_text().splitlines())
    assert len(played) == 2 and not any(each.differs for each in played)


def test_what_a_host_asks_of_the_policy_it_asks_of_the_recorded_one() -> None:
    policy = make_policy("br0")
    wrapped = recorded(policy, io.StringIO())
    assert wrapped.counters is policy.counters
    assert wrapped.follow().lengths, "the record wants them, whatever the policy does"


def test_tokens_of_a_policy_that_does_not_count_are_put_on_record_as_sums() -> None:
    sink = io.StringIO()
    policy = recorded(make_policy("round_robin"), sink)
    following = policy.follow()
    following.counted("never-sent", 5)
    following.sent("r", ("a", 0), ("a", 0), RequestView())
    following.counted("r", 2)
    following.counted("r", 3)
    policy.choose([WorkerView("a")], RequestView(now=100.0))
    assert [line for line in sink.getvalue().splitlines() if "counted" in line] == [
        '{"counted":["r",5]}'
    ]


def test_maps_and_centroids_that_are_taken_away_are_on_record() -> None:
    sink = io.StringIO()
    policy = recorded(make_policy("eldr"), sink)
    assert policy.locality is not None
    slots = np.array([[0], [1]])
    ones = np.ones((2, 1), dtype=np.float32)
    policy.locality.maps = {"d": ExpertMap(slots, ones, ones, np.ones(2, dtype=np.float32))}
    policy.locality.centroids = None
    workers = [WorkerView("d", dp_rank=rank) for rank in range(2)]
    signature = np.array([0.0, 1.0], dtype=np.float32)
    decision = policy.choose(workers, RequestView(signature=signature))
    lines = sink.getvalue().splitlines()
    assert any('"maps"' in line for line in lines)
    (played,) = replay(lines)
    assert decision is not None and played.now == played.recorded
    with pytest.raises(ValueError, match="round_robin has no use for centroids"):
        replay([lines[0].replace('"eldr"', '"round_robin"'), *lines[1:]])
