"""The generator: valid ids, skew, affinity that its knob turns; counts against loops."""

import numpy as np
import pytest

from tests.benchmarks.shared.specialised import specialised
from tests.synthetic_routing import (
    Recipe,
    distinct_ratio,
    families,
    split,
    token_ids,
)
from tests.unit.placement.cases import routed
from toolkit.placement import count

SMALL = {"layers": 3, "experts": 32, "top_k": 4, "families": 4, "topics": 3}


def information(affinity: float) -> float:
    """Mutual information of neighbouring layers' experts, nats."""
    pairs = count(token_ids(6000, Recipe(affinity=affinity, **SMALL), 0), 32).affinity[0]
    joint = pairs / pairs.sum()
    alone = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    some = joint > 0
    return float((joint[some] * np.log(joint[some] / alone[some])).sum())


def test_ids_are_distinct_experts_and_follow_the_seed() -> None:
    recipe = Recipe(**SMALL)
    ids = token_ids(500, recipe, 3)
    assert ids.shape == (500, 3, 4)
    assert (ids >= 0).all()
    assert (ids < 32).all()
    assert all(len(set(row)) == 4 for token in ids.tolist() for row in token)
    assert (ids == token_ids(500, recipe, 3)).all()
    assert (ids != token_ids(500, recipe, 4)).any()


def test_the_knob_turns_affinity() -> None:
    none, some, much = (information(affinity) for affinity in (0.0, 0.5, 1.0))
    assert none < 0.05
    assert none < some / 2 < much / 4


def test_load_is_skewed_and_differs_by_layer() -> None:
    load = count(token_ids(6000, Recipe(zipf=1.0, **SMALL), 0), 32).load
    assert (load.max(axis=1) > 1.8 * load.mean(axis=1)).all()
    assert np.corrcoef(load)[0, 1] < 0.7  # type: ignore[index]


def test_split() -> None:
    ids = routed(2, 8, 2, 0, 101)
    fit, held = split(ids, 0.25)
    assert (len(fit), len(held)) == (76, 25)
    assert (np.concatenate([fit, held]) == ids).all()
    with pytest.raises(ValueError, match="hold out"):
        split(ids[:1])


@pytest.mark.parametrize(
    "wrong",
    [{"layers": 0}, {"experts": 1}, {"top_k": 0}, {"top_k": 300}, {"affinity": -1}, {"zipf": -1},
     {"families": 0}, {"document": 0}],
)  # fmt: skip
def test_impossible_recipes(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"give|must"):
        Recipe(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        token_ids(0, Recipe(**SMALL), 0)


def test_counts_are_those_of_loops() -> None:
    ids = routed(3, 6, 2, 2, 90)
    traffic = count(ids, 6, windows=4, groups=3)
    load, pairs = np.zeros((3, 6)), np.zeros((2, 6, 6))
    for token in ids.tolist():
        for layer, row in enumerate(token):
            for expert in row:
                load[layer, expert] += 1
                for after in token[layer + 1] if layer < 2 else ():
                    pairs[layer, expert, after] += 1
    assert (traffic.load == load).all()
    assert (traffic.affinity == pairs).all()
    assert traffic.windows is not None
    assert (traffic.windows.sum(axis=0) == load).all()
    assert traffic.groups == 3


def test_many_tokens_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    ids = routed(3, 6, 2, 2, 90)
    whole = count(ids, 6).affinity
    monkeypatch.setattr(importlib.import_module("toolkit.placement.traffic"), "CHUNK", 7)
    assert (count(ids, 6).affinity == whole).all()


def test_a_token_keeps_to_its_best_groups() -> None:
    free = Recipe(layers=2, experts=32, top_k=4)
    limited = Recipe(layers=2, experts=32, top_k=4, groups=8, top_groups=2)
    ids = token_ids(400, limited, 0)
    reached = [len(set(row)) for row in (ids // 4).reshape(-1, 4).tolist()]
    assert max(reached) == 2
    assert all(len(set(row)) == 4 for row in ids.reshape(-1, 4).tolist())
    # A limit that lets all groups in changes nothing.
    everything = Recipe(layers=2, experts=32, top_k=4, groups=8, top_groups=8)
    assert (token_ids(400, everything, 0) == token_ids(400, free, 0)).all()


@pytest.mark.parametrize("wrong", [(5, 2), (32, 8), (8, 0), (8, 9), (16, 1)])
def test_impossible_groups(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="groups is impossible"):
        Recipe(layers=2, experts=32, top_k=4, groups=wrong[0], top_groups=wrong[1])


def test_families_are_those_of_the_ids() -> None:
    recipe = Recipe(layers=1, experts=32, top_k=4, affinity=3, families=2, classes=1, document=5)
    ids, family = token_ids(2001, recipe, 1), families(2001, recipe, 1)
    assert family.shape == (2001,)
    assert (family[:2000].reshape(-1, 5) == family[:2000:5, None]).all()
    loads = [np.bincount(ids[family == each].ravel(), minlength=32) for each in range(2)]
    assert np.minimum(*loads).sum() < 0.2 * np.maximum(*loads).sum()


def test_distinct_ratio_counts_batches() -> None:
    # Family 0 uses experts 0 and 1, family 1 experts 2 and 3: half of what a mixed batch does.
    ids = np.array([[[0, 1]], [[2, 3]]] * 40, np.int16)
    assert distinct_ratio(ids, np.arange(80) % 2) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="give more tokens"):
        distinct_ratio(ids[:30], np.arange(30) % 2)


@pytest.mark.slow
def test_specialised_is_as_alike_as_asked() -> None:
    recipe = Recipe(layers=4, experts=64, top_k=4, families=4)
    found = specialised(recipe, 0.8)
    assert found.layers == 4
    ids = token_ids(8000, found, 7)
    assert distinct_ratio(ids, families(8000, found, 7)) == pytest.approx(0.8, abs=0.03)
    with pytest.raises(ValueError, match="give one below 1"):
        specialised(recipe, 1.5)
