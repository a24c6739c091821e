"""The parts of ELDR in the router that need no other process: reading, sets of workers, sets of
centroids, settings."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.present import present
from tests.standin.signatures import TOKENS, wire
from tests.unit.router.eldr.cluster import (
    EXPERTS,
    FINGERPRINT,
    MASK,
    MODEL_LAYERS,
    counts,
    write_profile,
)
from tests.unit.router.eldr.stand_ins import PREFILL, configured, decode
from toolkit.contract.events import Hello, NotAnEvent, Records, Steps
from toolkit.contract.events import decode as decode_event
from toolkit.decide.messages import UsePolicy
from toolkit.decide.reservation import Reservation
from toolkit.policies import RequestView, make_policy
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.expert_map import ExpertMap
from toolkit.router.eldr.centroid_sets import Fit, Rows, in_order, match, share
from toolkit.router.eldr.locality import Locality
from toolkit.router.eldr.refits import Base, RefitError, fit_rows
from toolkit.router.eldr.worker_set import START_GRACE_S, WorkerSet, names
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.request_view import MAX_LABEL
from toolkit.router.splitting import parse
from toolkit.router.steps import StepSums
from toolkit.settings.router.config import ConfigError, RouterConfig
from toolkit.settings.router.load import load_config
from toolkit.signatures.calibrated import calibrated
from toolkit.signatures.nearness import Nearness
from toolkit.signatures.reader import SignatureReader, SignatureSample

HELLO = Hello(fingerprint=FINGERPRINT, signature=Records([1, 5], EXPERTS))
STEPS: dict[str, Any] = {
    "steps": 3,
    "requests": 9,
    "kv_tokens": 90,
    "seconds": 0.5,
    "distinct": 12.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("eldr") / "profile")


@pytest.fixture
def reader(folder: Any) -> Any:
    known = calibrated(folder)
    return SignatureReader(known.profile, known.space)


def test_a_signature_is_the_profile_s_own_vector(folder: Any, reader: Any) -> None:
    known = calibrated(folder)
    reader.greet("p", "prefill", HELLO)
    kind = counts(1, np.random.default_rng(5))
    sample = reader.read("p", wire(kind.reshape(-1).tolist()))
    assert isinstance(sample, SignatureSample)
    whole = np.zeros((len(MODEL_LAYERS), EXPERTS), np.int64)
    whole[sorted(MASK)] = kind
    np.testing.assert_allclose(sample.vector, known.space.signature(whole), rtol=1e-6)
    assert sample.tokens == TOKENS
    assert int(np.argmax(known.centroids @ sample.vector)) == 1


@given(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(),
        st.lists(st.integers()),
        st.dictionaries(
            st.sampled_from(["counts", "scale", "tokens", "complete"]),
            st.one_of(
                st.none(), st.booleans(), st.text(), st.integers(), st.floats(), st.just("AAAA")
            ),
        ),
    )
)
def test_no_signature_whatsoever_breaks_the_reader(signature: Any) -> None:
    reader = SignatureReader(READER.profile, READER.space)
    read = reader.read("p", signature)
    assert isinstance(read, str) and read


class _Reader:
    """A profile for hypothesis, which cannot use fixtures of a function."""

    def __init__(self) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as place:
            known = calibrated(write_profile(Path(place) / "profile"))
        self.profile, self.space = known.profile, known.space


READER = _Reader()


def known_workers(*sizes: int) -> KnownWorkers:
    decodes = [decode(f"d{number}", size) for number, size in enumerate(sizes)]
    return KnownWorkers(configured(*decodes))


async def test_the_worker_set_waits_for_those_that_are_still_to_come() -> None:
    workers = known_workers(1, 2)
    worker_set = WorkerSet(workers.side("decode"))
    everybody = (("d0", 0), ("d1", 0), ("d1", 1))
    assert worker_set.present(0.0) == everybody
    workers.workers[1].healthy = True
    assert worker_set.note(100.0) is True
    assert worker_set.note(101.0) is False
    assert worker_set.present(101.0) == everybody
    assert worker_set.present(100.0 + START_GRACE_S) == everybody[:1]
    workers.workers[2].healthy = True
    worker_set.note(110.0)
    workers.workers[2].healthy = False
    assert worker_set.present(111.0) == everybody[:1]


def test_a_server_is_lost_or_comes_back_with_all_its_ranks() -> None:
    worker_set = WorkerSet(known_workers(1, 2, 1).side("decode"))
    a, b, b1, c = ("d0", 0), ("d1", 0), ("d1", 1), ("d2", 0)
    assert worker_set.sizes_near((a, b, b1, c)) == {2, 3, 4}
    assert worker_set.sizes_near((a, c)) == {1, 2, 4}
    assert worker_set.sizes_near((c,)) == {1, 2, 3}


def sharing(*sizes: int, **more: object) -> RouterConfig:
    """Decode servers with DP attention, of so many ranks."""
    decodes = [decode(f"d{n}", size, dp_attention=True) for n, size in enumerate(sizes)]
    return configured(*decodes, **more)


def test_ranks_that_share_their_experts_are_to_have_one_centroid() -> None:
    workers = KnownWorkers(sharing(2, 2))
    worker_set = WorkerSet(workers.side("decode"))
    both = (("d0", None), ("d1", None))
    assert worker_set.present(0.0) == both
    assert worker_set.sizes_near(both) == {1, 2}
    assert names(both) == "d0, d1"
    views = [rank.view(0.0, True) for rank in workers.side("decode")]
    assert [view.group for view in views] == [both[0]] * 2 + [both[1]] * 2


def test_what_a_worker_says_of_its_ranks_counts_more_than_the_configuration() -> None:
    workers = known_workers(2)
    worker_set, worker = WorkerSet(workers.side("decode")), workers.workers[1]
    apart, together = (("d0", 0), ("d0", 1)), (("d0", None),)
    assert worker_set.present(0.0) == apart
    for hello, expected in ((Hello(dp_attention=True), together), (Hello(), apart)):
        workers.greet(worker, hello)
        assert worker_set.present(0.0) == expected
    workers = KnownWorkers(sharing(2))
    worker = workers.workers[1]
    workers.greet(worker, Hello(dp_attention=False))
    assert not worker.shares_experts
    workers.greet(worker, Hello())
    assert worker.shares_experts


def test_what_runs_on_one_rank_makes_all_that_share_its_experts_near(folder: Any) -> None:
    config = sharing(2, 2, profile=folder, decode_policy="eldr")
    workers = KnownWorkers(config)
    locality = Locality(config, workers)
    first, second, *_ = workers.side("decode")
    vector = calibrated(folder).centroids[0]
    policy = make_policy("eldr")
    locality.attach(policy)
    following, view = policy.follow(), RequestView(signature=vector)
    reserved = [Reservation(rank, view, 0.0, following) for rank in (first, second)]
    assert locality.inflight_signatures.count(("d0", None)) == 2
    for reservation in reserved:
        reservation.end(True, 1.0)
    assert locality.inflight_signatures.count(("d0", None)) == 0
    locality.assignment.close()


@pytest.mark.parametrize(("sizes", "told"), [((2,), True), ((1,), False), ((2, 2), False)])
def test_one_server_is_told_that_there_is_nothing_to_choose_by(
    folder: Any, caplog: pytest.LogCaptureFixture, sizes: Any, told: bool
) -> None:
    config = sharing(*sizes, profile=folder, decode_policy="eldr")
    Locality(config, KnownWorkers(config)).assignment.close()
    assert ("locality decides nothing" in caplog.text) == told


def test_maps_reach_the_policy_and_those_of_others_are_refused(folder: Any) -> None:
    config = sharing(4, profile=folder)
    workers = KnownWorkers(config)
    locality = Locality(config, workers)
    try:
        values = locality.space.dimensions
        none = np.zeros((4, 1))
        known = ExpertMap(none.astype(int), none, none, np.ones(values), nodes=2)
        before, after = make_policy("eldr"), make_policy("composed")
        locality.attach(before)
        workers.channel.send(UsePolicy("decode", before))
        locality.place("s0", known)
        locality.attach(after)
        workers.channel.send(UsePolicy("decode", after))
        assert present(before.locality).maps == after.locality.maps == {"s0": known}  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="another model or profile"):
            locality.place("s0", ExpertMap(none.astype(int), none, none, np.ones(values + 1)))
        locality.place("s0", None)
        locality.place("s0", None)
        assert present(after.locality).maps == {}
    finally:
        locality.assignment.close()


def axes(*names: str) -> Fit:
    keys = tuple((name, 0) for name in names)
    return in_order(keys, Rows(np.eye(len(names), 6, dtype=np.float32), Nearness(0.9, None)))


def test_sharing_leaves_no_worker_without_a_centroid_and_no_centroid_without_a_worker() -> None:
    fit = share(axes("a", "b", "c"), (("b", 0), ("x", 0), ("c", 0), ("y", 0), ("z", 0)))
    owner = fit.centroids.owner
    assert set(owner) == set(fit.groups) and fit.shared
    assert set(owner.values()) == {0, 1} == set(range(len(fit.centroids.rows)))
    np.testing.assert_array_equal(fit.centroids.rows[owner["b", 0]], np.eye(6)[1])
    nobody_stays = share(axes("a", "b"), (("x", 0),))
    assert nobody_stays.centroids.owner == {("x", 0): 0}


def row_of(key: tuple[str, int], fit: Fit) -> np.ndarray:
    result: np.ndarray = fit.centroids.rows[fit.centroids.owner[key]]
    return result


def alike(stay: list[Any], order: Iterable[Any], old: Fit, new: Fit) -> float:
    """Sum of cosines if those that stay took the rows of `order`."""
    pairs = zip(stay, order, strict=True)
    return sum(float(row_of(key, old) @ row_of(other, new)) for key, other in pairs)


@given(st.integers(0, 50), st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
def test_every_rank_gets_a_row_of_its_own_and_those_that_stay_the_most_like_theirs(
    seed: int, names: Any
) -> None:
    values = np.abs(np.random.default_rng(seed).normal(size=(len(names), 6))) ** 3
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    current = axes("a", "b", "c")
    keys = tuple((name, 0) for name in names)
    fit = match(current, keys, Rows(values.astype(np.float32), Nearness(0.5, 2.0)))
    assert fit.groups == keys and set(fit.centroids.owner) == set(keys)
    assert sorted(fit.centroids.owner.values()) == list(range(len(keys)))
    stay = [key for key in keys if key in current.centroids.owner]
    best = max(alike(stay, order, current, fit) for order in permutations(keys, len(stay)))
    assert alike(stay, stay, current, fit) >= best - 1e-4


def test_without_a_fit_before_rows_are_handed_out_in_order() -> None:
    rows = Rows(np.eye(2, 6, dtype=np.float32), Nearness(0.5, None))
    assert match(None, (("a", 0), ("b", 0)), rows).centroids.owner == {("a", 0): 0, ("b", 0): 1}


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_refit_process_says_why_it_failed(folder: Any) -> None:
    requests = calibrated(folder).requests
    base, many = Base(requests), len(requests.fitted)
    with pytest.raises(RefitError, match="cannot make") as caught:
        await fit_rows(base, [many + 1], 0)
    assert caught.value.hopeless
    rows = await fit_rows(base, [many + 1, 3], 0)
    assert list(rows) == [3] and rows[3].rows.shape == (3, base.dimensions)
    assert 0.5 < rows[3].expected.cosine < 1
    running = asyncio.ensure_future(fit_rows(base, [2], 0))
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    before = open_files()
    base.close()
    assert open_files() == before - 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decode_policy": "eldr"}, "needs `profile`"),
        ({"decode_policy": "eldr@0.2"}, "needs `profile`"),
        ({"decode_policy": "eldr", "profile": "/x", "dispatch": "concurrent"}, "'late'"),
        ({"decode_policy": "composed"}, "needs `profile`.*composed@filter"),
        ({"decode_policy": "composed@eldr+br0"}, "needs `profile`"),
        ({"decode_policy": "composed", "profile": "/x", "dispatch": "concurrent"}, "'late'"),
        ({"decode_policy": "composed@br0+brh"}, "keep one of them"),
        ({"decode_policy": "eldr@7", "profile": "/x"}, "tau"),
        ({"prefill_policy": "eldr", "profile": "/x"}, "prefill policy"),
        ({"profile": "relative/path"}, "absolute"),
        ({"tau": 1.5}, "less than or equal to 1"),
        ({"decode_policy": "elder"}, "eldr"),
    ],
)
def test_settings_that_cannot_work_say_what_to_do(
    tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "router.json"
    path.write_text(json.dumps({"workers": [PREFILL, decode("d")], **change}))
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_composed_without_eldr_needs_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    for name in ("composed@filter+brh+user", "composed@none"):
        path.write_text(json.dumps({"workers": [PREFILL, decode("d")], "decode_policy": name}))
        assert load_config(path).decode_policy == name


def test_plain_workers_cannot_have_eldr(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    plain = {"name": "a", "role": "plain", "url": "http://127.0.0.1:1"}
    for change in ({"decode_policy": "eldr", "profile": "/x"}, {"profile": "/x"}):
        path.write_text(json.dumps({"workers": [plain], **change}))
        with pytest.raises(ConfigError, match="prefill and decode"):
            load_config(path)


@pytest.mark.slow
def test_a_router_without_a_usable_profile_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    config = {"workers": [PREFILL, decode("d")], "profile": str(tmp_path / "none")}
    path.write_text(json.dumps(config | {"decode_policy": "eldr"}))
    command = [sys.executable, "-m", "toolkit.router", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "toolkit profile" in done.stderr and "Traceback" not in done.stderr


def test_a_router_without_a_profile_imports_no_numpy() -> None:
    code = """
import asyncio, sys
import toolkit.router.__main__
from toolkit.router.app import RouterApp
from toolkit.settings.router.config import RouterConfig
async def main():
    router = RouterApp(RouterConfig.model_validate_json(sys.argv[1]))
    router.app(), router.metrics.text()
    router.control.policies.use("decode", "label_oracle")
asyncio.run(main())
print([name for name in ("numpy", "scipy", "safetensors", "torch") if name in sys.modules])
"""
    config = json.dumps({"workers": [PREFILL, decode("d")]})
    done = subprocess.run([sys.executable, "-c", code, config], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_label_is_cut_and_belongs_to_every_sample() -> None:
    body = b'{"prompt": ["a", "b"], "n": 2}'
    job = parse("/v1/completions", body, label="x" * 1000)
    assert [sub_request.view.label for sub_request in job.sub_requests] == ["x" * MAX_LABEL] * 4
    for label in (None, ""):
        assert parse("/generate", b'{"text": "a"}', label=label).sub_requests[0].view.label is None


def test_steps_add_up_and_nonsense_changes_nothing() -> None:
    sums = StepSums()
    sums.add(Steps(**STEPS))
    for wrong in ({"distinct": float("nan")}, {"seconds": float("inf")}, {"steps": -1}):
        with pytest.raises(ValueError, match="not a steps event"):
            sums.add(Steps(**{**STEPS, **wrong}))
    for wrong in ({"steps": None}, {"seconds": "x"}, {"requests": [1]}):  # type: ignore[assignment]
        with pytest.raises(NotAnEvent):
            decode_event(json.dumps({"type": "steps", **STEPS, **wrong}).encode())
    with pytest.raises(NotAnEvent):
        decode_event(b'{"type":"steps"}')
    sums.add(Steps(**STEPS))
    assert (sums.steps, sums.requests, sums.kv_tokens) == (6, 18, 180)
    assert (sums.seconds, sums.distinct) == (1.0, 24.0)


def test_rows_in_order_belong_to_workers_in_order() -> None:
    fit = axes("a", "b")
    assert isinstance(fit.centroids, Centroids)
    assert fit.centroids.owner == {("a", 0): 0, ("b", 0): 1}
