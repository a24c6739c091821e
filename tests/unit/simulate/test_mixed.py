"""What mixed lengths cost: the term by hand, who is the longest, and what a batch's steps take."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.benchmarks.shared.mixed_lengths import mixed_of
from tests.unit.simulate.fleets import COST, drafting, fleet, plain, requests
from toolkit.simulate.costs import minds_lengths
from toolkit.simulate.costs.linear import Decode, Linear
from toolkit.simulate.loop import Loop
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation

KV_S = 1e-6


def steps(mixed: float, **decode: float) -> Linear:
    made = Decode(base=0.01, per_kv_token=KV_S, mixed=mixed, **decode)
    return Linear(decode=made, prefill=COST.prefill)


def arrays(*ranks: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    count, kv, longest = (np.array(column) for column in zip(*ranks, strict=True))
    return count, kv, 0.0, longest


def test_a_step_waits_for_the_longest_by_hand() -> None:
    # 4 requests of 1000 tokens in all, one of 700: 450 above the mean of 250.
    assert steps(2e-6).decode_s(*arrays((4, 1000, 700))) == pytest.approx(0.01 + 1e-3 + 450 * 2e-6)
    # Four of 250: nobody waits.
    assert steps(2e-6).decode_s(*arrays((4, 1000, 250))) == pytest.approx(0.01 + 1e-3)
    # At most 1.1 times the attention more, or what is said.
    assert steps(9e-6).decode_s(*arrays((4, 1000, 700))) == pytest.approx(0.01 + 2.1e-3)
    most = steps(9e-6, mixed_most=0.5)
    assert most.decode_s(*arrays((4, 1000, 700))) == pytest.approx(0.01 + 1.5e-3)


def test_of_several_ranks_the_slowest_counts_even_if_it_holds_less() -> None:
    ranks = arrays((4, 1000, 250), (2, 800, 700), (0, 0, 0))
    assert steps(1e-6).decode_s(*ranks) == pytest.approx(0.01 + 0.8e-3 + 300e-6)
    assert steps(0.0).decode_s(*ranks) == pytest.approx(0.01 + 1e-3)


def test_the_coefficient_of_a_penalty() -> None:
    lengths = [100] * 7 + [2900]
    cost = steps(mixed_of(1.6, KV_S, lengths))
    attention = cost.decode_s(*arrays((8, sum(lengths), 2900))) - 0.01
    assert attention == pytest.approx(1.6 * sum(lengths) * KV_S)
    assert mixed_of(1.0, KV_S, lengths) == 0.0
    for wrong in (lambda: mixed_of(0.9, KV_S, lengths), lambda: mixed_of(1.5, KV_S, [9, 9])):
        with pytest.raises(ValueError, match="lengths"):
            wrong()  # type: ignore[no-untyped-call]
    with pytest.raises(ValidationError):
        Decode(base=0.0, mixed=-1e-6)


def test_off_by_default() -> None:
    assert not minds_lengths(COST) and minds_lengths(steps(1e-9))


def test_a_batch_of_mixed_lengths_is_slower_at_the_same_total() -> None:
    def took(*prompts: int) -> float:
        asked = [Request(n, 0.0, prompt, 200) for n, prompt in enumerate(prompts)]
        Simulation(fleet({"loop": "plain"}), steps(1e-5), asked).run()
        return max(r.ended - r.first_token for r in asked)

    # 1.1 times the attention more for as long as all four run.
    assert took(10, 10, 10, 3970) - took(1000, 1000, 1000, 1000) == pytest.approx(
        199 * 4000 * KV_S * 1.1, rel=0.1
    )


@pytest.mark.parametrize("accepted", [None, 1.7])
@pytest.mark.parametrize("mode", ["pd", "plain"])
def test_the_longest_is_the_longest(
    mode: str, accepted: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With retractions, passes that stand still and ranks that step together."""
    seen = []
    plan = Loop._plan

    def looked(group: Loop) -> None:
        assert group._longest is not None
        right = [
            max(
                (
                    r.prompt + r.generated - 1 + (group.steps - r.joined) * group.pace
                    for r in rank.running
                ),
                default=0,
            )
            for rank in group.ranks
        ]
        assert group._longest.now(group.steps).tolist() == right
        seen.extend(right)
        plan(group)

    monkeypatch.setattr(Loop, "_plan", looked)
    sizes: dict[str, Any] = {"dp": 2, "dp_attention": True, "slots": 9, "kv_tokens": 3000}
    made = (
        plain(conservativeness=0.0, **sizes)
        if mode == "plain"
        else fleet(sizes | {"reserve": 0}, {"decode_policy": "round_robin"})
    )
    made = made.model_copy(update={"drafting": drafting(accepted)})
    asked = requests(200, 40.0, prompt=200, output=150)
    simulation = Simulation(made, steps(1e-7), asked)
    assert simulation.run().retracted > 0
    assert max(seen) > 500
