"""The value of an exchange, held against the objective worked out from nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from toolkit.placement.replicas import items, pack, replicate
from toolkit.placement.swaps import TWIN, Exchange, Layer, improve

pytestmark = pytest.mark.touched("placement")


def total(layer: Layer, gain: np.ndarray, gpu: np.ndarray, price: float) -> float:
    """The objective as the module's text has it."""
    load = np.bincount(gpu, layer.weight.astype(float), layer.gpus)
    over = np.maximum(load - layer.limit, 0) + np.maximum(layer.floor - load, 0)
    if layer.spread is not None:
        sway = np.stack([layer.spread[:, gpu == g].sum(axis=1) for g in range(layer.gpus)])
        risk = load + layer.caution / 2 * (sway.astype(float) ** 2).sum(axis=1)
        over = over + np.maximum(risk - layer.risk_limit, 0)
    pairs = layer.expert * layer.gpus + gpu
    twins = sum(n * (n - 1) // 2 for n in np.unique(pairs, return_counts=True)[1])
    return float(gain[np.arange(len(gpu)), gpu].sum() - price * over.sum() - TWIN * twins)


@st.composite
def layers(draw: st.DrawFn) -> tuple[Layer, np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    gpus, slots = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    experts = draw(st.integers(slots, gpus * slots))
    load = rng.integers(1, 30, (1, max(experts, 2))).astype(float)
    physical = gpus * slots
    counts = replicate(load, physical - load.shape[1], gpus)
    batch = items(load, counts, gpus)
    layer = Layer(
        batch.expert[0], batch.weight[0].astype(np.float32), gpus, draw(st.floats(0.8, 1.5))
    )
    if draw(st.booleans()):
        layer = replace(layer, floor=draw(st.floats(0.5, 0.99)))
    if draw(st.booleans()):
        spread = rng.normal(0, 0.2, (5, physical)).astype(np.float32)
        layer = replace(layer, spread=spread, caution=3.0, risk_limit=draw(st.floats(0.9, 1.6)))  # type: ignore[arg-type]
    gain = rng.random((physical, gpus)).astype(np.float32)
    gpu = rng.permutation(np.arange(physical) // slots)
    return layer, gain, gpu, draw(st.sampled_from([0.0, 1.0, 30.0]))


def differs(one: float, two: float, price: float) -> bool:
    return abs(one - two) > 1e-3 * max(1.0, price) + 1e-6 * (abs(one) + abs(two))


@settings(max_examples=examples(80), deadline=None)
@given(layers())
def test_every_value_is_the_change_of_the_objective(problem: Any) -> None:
    layer, gain, gpu, price = problem
    exchange = Exchange(layer, gain, gpu, price)
    before = total(layer, gain, gpu, price)
    for one in range(len(gpu)):
        for other in range(one):
            after = gpu.copy()
            after[[one, other]] = after[[other, one]]
            change = total(layer, gain, after, price) - before
            if layer.expert[one] == layer.expert[other]:
                change = 0.0
            assert not differs(exchange.value[one, other], change, price), (one, other)
            assert not differs(exchange.value[other, one], exchange.value[one, other], price)


@settings(max_examples=examples(60), deadline=None)
@given(layers())
def test_values_stay_right_while_exchanges_are_made(problem: Any) -> None:
    layer, gain, gpu, price = problem
    exchange = Exchange(layer, gain, gpu, price)
    before = total(layer, gain, gpu, price)
    while exchange.round(1e-3 * max(1.0, price)):
        after = total(layer, gain, exchange.gpu, price)
        assert after > before
        before = after
        fresh = Exchange(layer, gain, exchange.gpu, price)
        scale = np.abs(fresh.value).max() * 1e-5 + 1e-3 * max(1.0, price)
        np.testing.assert_allclose(exchange.value, fresh.value, atol=scale)
        assert (np.bincount(exchange.gpu, minlength=layer.gpus) == len(gpu) // layer.gpus).all()


@settings(max_examples=examples(60), deadline=None)
@given(layers())
def test_twins_are_parted(problem: Any) -> None:
    layer, gain, gpu, _ = problem
    layer = replace(layer, limit=10.0, floor=0.0, spread=None)
    assert layer.fits(improve(layer, gain, gpu, 1.0, 200))


def test_a_layer_in_its_limits_stays_in_them() -> None:
    rng = np.random.default_rng(0)
    load = rng.zipf(1.6, (1, 24)).clip(max=40).astype(float)
    batch = items(load, replicate(load, 8, 8), 8)
    gpu = pack(batch, 24, 8)[0]
    layer = Layer(batch.expert[0], batch.weight[0].astype(np.float32), 8, np.inf)
    layer = replace(layer, limit=float(layer.loads(gpu).max()))
    found = improve(layer, rng.random((32, 8)).astype(np.float32), gpu, 1e6, 100)
    assert layer.fits(found)
    assert (found != gpu).any()
    assert not layer.fits(np.sort(gpu))


def test_packing_is_as_balanced_as_sglangs() -> None:
    """The start is EPLB's greedy; ties go another way in ours."""
    from tests.unit.placement.cases import WEIGHT
    from toolkit.placement import Topology, Traffic, eplb

    pytest.importorskip("torch")
    load = np.array(WEIGHT, float)
    other = eplb(Traffic(load, np.zeros((1, 12, 12))), Topology(8), 4)
    batch = items(load, replicate(load, 4, 8), 8)
    gpu = pack(batch, 12, 8)
    ours = [np.bincount(g, w, 8).max() for g, w in zip(gpu, batch.weight, strict=True)]
    theirs = np.einsum("le,leg->lg", load, other.held() / other.replicas()[..., None])
    np.testing.assert_allclose(ours, theirs.max(axis=1) / theirs.mean(axis=1), 0.01)
