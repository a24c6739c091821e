"""Simulated ELDR is fair: what is served was not fitted to, and signatures tell no more than the
model that decodes."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks import eldr_simulated
from tests.benchmarks.shared.eldr_artifact import ARTIFACT, Measured, reason
from tests.benchmarks.shared.eldr_blend import Blend
from tests.benchmarks.shared.eldr_rows import Prompt, Rows, chosen, of_profile, read
from tests.training.corpus import ALLOWED, is_held_out
from toolkit.resources import profiles_dir
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.request import Request
from toolkit.simulate.workloads.patterns import with_rows

KINDS = {"a": 0.5, "b": 0.3, "c": 0.2}
LAYERS, EXPERTS = 2, 12


def rows(each: int = 12) -> Rows:
    """Three kinds that use four experts each, a third of the prompts to serve."""
    source = np.random.default_rng(0)
    labels = [kind for kind in KINDS for _ in range(each)]
    use = np.zeros((len(labels), LAYERS, EXPERTS))
    for row, kind in enumerate(labels):
        first = 4 * "abc".index(kind)
        use[row, :, first : first + 4] = source.uniform(0.3, 0.7, (LAYERS, 4))
    served = np.arange(len(labels)) % 3 == 0
    return Rows(use, use, tuple((kind,) for kind in labels), served)


def played(experts: SimulatedExperts, label: str = "") -> set[int]:
    requests = (Request(n, float(n), 9, 9, label=label) for n in range(400))
    return {request.row for request in with_rows(requests, experts)}


def test_requests_follow_no_row_that_centroids_were_fitted_to() -> None:
    experts = Blend(rows(), KINDS, 60, 1.0).experts(0.3)
    assert not set(experts.calibration) & set(experts.traffic)
    assert played(experts) == set(experts.traffic)
    assert played(experts, "b") == {r for r in experts.traffic if "b" in experts.labels[r]}
    assert played(experts, "unknown") == set(experts.traffic)


def test_what_is_served_moves_no_centroid_no_weight_and_no_layer() -> None:
    plain, other = rows(), rows()
    other.prefill[other.served] = other.prefill[other.served][::-1, :, ::-1]
    other.decode[other.served] = 0.1
    one, two = (Blend(each, KINDS, 60, 1.0).experts(0.3) for each in (plain, other))
    assert (one.centroids(3, 0) == two.centroids(3, 0)).all()


def test_a_profiles_held_out_requests_are_the_traffic() -> None:
    experts = SimulatedExperts.of_profile(profiles_dir() / "embedded")
    held = of_profile().served
    assert [int(row) for row in np.flatnonzero(held)] == list(experts.traffic)
    assert [int(row) for row in np.flatnonzero(~held)] == list(experts.calibration)


@pytest.mark.parametrize("held", [(), (False,) * 3, (True,) * 3])
def test_without_a_split_every_row_is_both(held: tuple[bool, ...]) -> None:
    experts = SimulatedExperts(np.ones((3, 1, 4)), np.full(3, 9), held_out=held)
    assert experts.calibration == experts.traffic == (0, 1, 2)


def alike(experts: SimulatedExperts) -> tuple[float, float]:
    """Mean cosine of signatures of one kind, and of two."""
    assert experts.signatures is not None
    cosines = experts.signatures @ experts.signatures.T
    kinds = np.array([labels[0] for labels in experts.labels])
    same = kinds[:, None] == kinds[None]
    return float(cosines[same].mean()), float(cosines[~same].mean())


def test_signatures_are_of_the_model_that_decodes() -> None:
    """All that tells kinds apart is blended away in decode: then signatures must not know it."""
    blend = Blend(rows(), KINDS, 60, 1.0)
    same, other = alike(blend.experts(0.0))
    assert same > other + 0.9
    same, other = alike(blend.experts(1.0))
    assert same == pytest.approx(other, abs=0.03)


def test_a_blend_is_as_special_as_asked() -> None:
    blend = Blend(rows(), KINDS, 60, 0.5)
    assert blend.fewer(0.0) > 0.3
    assert blend.fewer(blend.as_special(0.15)) == pytest.approx(0.15, abs=0.02)


@given(st.integers(1, 200), st.integers(1, 24))
def test_centroids_of_fewer_than_ten_prompts_are_refused(prompts: int, decoders: int) -> None:
    refused = eldr_simulated.enough(prompts, decoders)
    assert bool(refused) == (prompts / decoders < 10)


def test_a_refused_pool_plays_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eldr_simulated, "runs", None)
    blend = Blend(rows(), KINDS, 60, 1.0)
    assert blend.prompts == 24
    found = eldr_simulated.pool("language", 8, blend, blend.chances(0.0), None)
    assert "3.0 for each of 8 centroids" in found["refused"]


def test_draws_go_by_the_shares_and_repeat_no_prompt_before_all_came() -> None:
    drawn = rows().drawn(KINDS, False, 20)
    assert [len([r for r in drawn if r // 12 == kind]) for kind in range(3)] == [10, 6, 4]
    assert max(drawn.count(row) for row in drawn) == 2, "ten of eight prompts"


def test_only_prompts_that_training_has_not_seen_are_served() -> None:
    prompts = [Prompt(f"{n}", "a", "en", seen=n % 4 > 0) for n in range(80)]
    found = chosen(prompts, [{"a": 1.0}], 30)
    served = {prompt.text for prompt, serve in found if serve}
    fitted = {prompt.text for prompt, serve in found if not serve}
    assert len(served) == 10 and all(int(text) % 4 == 0 for text in served)
    assert len(fitted) == 30 and not served & fitted
    assert sum(int(text) % 4 == 0 for text in fitted) == 10


def test_a_file_of_prompts_says_what_training_has_seen(tmp_path: Path) -> None:
    seen = next(text for text in map(str, range(99)) if not is_held_out(text))
    source = next(iter(ALLOWED))
    lines: list[dict[str, Any]] = [
        {"text": seen, "domain": "code", "language": "en", "source": source},
        {"text": seen + "x", "domain": "code", "language": "en"},
        {"text": "plain", "domain": "sentence", "language": "en"},
    ]
    path = tmp_path / "prompts.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    assert [(p.labels, p.seen) for p in read(path)] == [
        (("code", "en", "code/en"), True),
        (("code", "en", "code/en"), False),
    ]


def test_a_reason_follows_from_the_numbers() -> None:
    measured = Measured(20, (20.0, 30.0), (18.0, 27.0))
    ours = {"p50": 0.9, "p50_low": 0.88, "p50_high": 0.92, "distinct": 0.8, "share": 0.6}
    ours["queue_ms"] = 10.0
    assert reason(ours, measured) == "not told apart from what was measured"
    more = reason(ours | {"p50": 0.85, "p50_low": 0.84, "p50_high": 0.86}, measured)
    assert more.startswith("more gain here: 15.0% for 10.0% there")
    assert "60% of our step, and 20% fewer are loaded; with that fall theirs would be 50%" in more
    assert "2.0 times" in more
    less = reason(ours | {"p50": 0.97, "p50_low": 0.96, "p50_high": 0.98}, measured)
    assert less.startswith("less gain here: 3.0% for 10.0% there")
    one = {"p50": 0.97, "p50_low": float("nan"), "p50_high": float("nan")}
    assert reason(ours | one, measured).startswith("one seed, no interval; less gain here")


def test_the_artifacts_rows_are_those_of_eldrs_ratios() -> None:
    assert sum(map(len, ARTIFACT.values())) == 14
    p50 = [m.p50 for each in ARTIFACT.values() for m in each]
    assert min(p50) > 0.8 and max(p50) < 0.97
