"""Distinct experts of ranks that share them: the union over the ranks of each step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from patches.steps.lockstep import GroupSteps, packed
from patches.steps.step_log import FIELDS, StepBlock
from patches.streams.step_join import HOLD_S, StepJoin

LAYERS, EXPERTS = 2, 11
PREFILL = "prefill"
Used = frozenset[tuple[int, int]]
"""(layer, expert) of one rank in one step; empty for no tokens."""


def block(rank: int, ranks: int, upto: int, rows: list[tuple[int, Used | str]]) -> StepBlock:
    """`rows`: (step, what it used)."""
    given_rows, masks = [], []
    for step, used in rows:
        hit = np.zeros((LAYERS, EXPERTS), dtype=bool)
        for layer, expert in used if isinstance(used, frozenset) else ():
            hit[layer, expert] = True
        # As wide as its last expert needs.
        last = max((e for _, e in used), default=0) if isinstance(used, frozenset) else 0
        masks.append(hit[:, : last + 1])
        head = [0.0] * len(FIELDS)
        head[0], head[4] = float(used != PREFILL), float(step)
        given_rows.append([*head, *hit.sum(axis=1)])
    array = np.array(given_rows, np.float32).reshape(len(rows), len(FIELDS) + LAYERS)
    used_bits = packed(masks)  # type: ignore[arg-type]
    steps = np.array([step for step, _ in rows], np.int64).tobytes()
    group = GroupSteps(ranks, upto, steps, used_bits.tobytes(), used_bits.shape)
    return StepBlock(rank, 0.0, array.shape, array.tobytes(), b"", group)


def told(blocks: list[StepBlock]) -> dict[tuple[int, int], list[float]]:
    """(rank, step) -> distinct experts by layer."""
    found = {}
    for each in blocks:
        assert each.group is None
        for row in np.frombuffer(each.rows, np.float32).reshape(each.shape):
            found[each.dp_rank, int(row[4])] = row[len(FIELDS) :].tolist()
    return found


def test_a_rank_on_its_own_passes_at_once() -> None:
    alone = StepBlock(0, 0.0, (0, len(FIELDS)), b"")
    assert StepJoin().take(alone) == [alone]


def test_nothing_is_told_before_every_rank_has() -> None:
    join = StepJoin()
    mine, theirs = frozenset({(0, 1), (1, 2)}), frozenset({(0, 1), (0, 10), (1, 3)})
    assert join.take(block(0, 2, 5, [(4, mine), (5, mine)])) == []
    assert told(join.take(block(1, 2, 4, [(4, theirs)]))) == {(1, 4): [2, 2]}
    # Rank 1 had no tokens in step 5, which it says without a row.
    assert told(join.take(block(1, 2, 9, []))) == {(0, 4): [2, 2], (0, 5): [1, 1]}
    assert join._used == {}


def test_a_step_of_which_somebody_knows_nothing_is_not_known() -> None:
    join = StepJoin()
    mine = frozenset({(0, 1), (1, 2)})
    join.take(block(0, 2, 2, [(1, mine), (2, mine)]))
    found = told(join.take(block(1, 2, 2, [(1, PREFILL), (2, mine)])))
    assert found == {(0, 1): [0, 0], (0, 2): [1, 1], (1, 1): [0, 0], (1, 2): [1, 1]}


def test_a_rank_that_never_tells_holds_nobody_for_ever() -> None:
    now = [0.0]
    join = StepJoin(lambda: now[0])
    assert join.take(block(0, 2, 1, [(1, frozenset({(0, 1)}))])) == []
    now[0] += HOLD_S + 1
    assert told(join.take(block(0, 2, 2, [(2, frozenset({(0, 1)}))]))) == {(0, 1): [0, 0]}


USED = st.frozensets(st.tuples(st.integers(0, LAYERS - 1), st.integers(0, EXPERTS - 1)), max_size=6)


@given(
    history=st.lists(st.lists(USED, min_size=3, max_size=3), min_size=1, max_size=12),
    cuts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=30),
)
def test_the_union_is_exact_however_the_logs_are_cut(
    history: list[list[Used]], cuts: list[tuple[int, int]]
) -> None:
    """`cuts`: this rank tells of so many more steps."""
    join, at, out = StepJoin(), [0, 0, 0], []
    for rank, more in [*cuts, *((rank, len(history)) for rank in range(3))]:
        begin, at[rank] = at[rank], min(len(history), at[rank] + more)
        rows = [(n + 1, history[n][rank]) for n in range(begin, at[rank]) if history[n][rank]]
        out += join.take(block(rank, 3, at[rank], rows))  # type: ignore[arg-type]
    found = told(out)
    for n, ranks in enumerate(history):
        together = frozenset().union(*ranks)
        counts = [float(sum(layer == at for at, _ in together)) for layer in range(LAYERS)]
        for rank, mine in enumerate(ranks):
            assert found.pop((rank, n + 1), None) == (counts if mine else None)
    assert not found and not join._used
