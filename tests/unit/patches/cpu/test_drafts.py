"""Speculative decoding on the CPU: what stands in for SGLang's kernels, and attention to drafts."""

import os
import subprocess
import sys
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches.cpu import attention, drafts
from tests.kernels import examples
from tests.unit.patches.cpu import drafted_trees

pytestmark = pytest.mark.touched("engine")

torch = pytest.importorskip("torch")
SLOTS, D, HEADS, KV_HEADS = 64, 8, 4, 2


def test_trees_are_those_of_sglangs_own_kernels() -> None:
    asked = [sys.executable, "-m", drafted_trees.__name__]
    variables = os.environ | {"TRITON_INTERPRET": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    done = subprocess.run(asked, capture_output=True, text=True, env=variables, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [str(drafted_trees.TREES)]


def test_slots_are_those_of_each_request() -> None:
    from patches import stubs

    stubs.put_on_path()
    from sgl_kernel import speculation

    table = torch.arange(40).view(4, 10)
    rows, starts, ends = torch.tensor([2, 0]), torch.tensor([3, 1]), torch.tensor([5, 4])
    out = torch.zeros(7, dtype=torch.long)
    speculation.assign_extend_cache_locs_cpu(rows, table, starts, ends, out, 10)
    assert out.tolist() == [23, 24, 1, 2, 3, 0, 0]
    behind = torch.zeros(8, dtype=torch.long)
    speculation.assign_draft_cache_locs_contiguous_cpu(rows, table, starts, behind, 10, 2, 2)
    assert behind.tolist() == [23, 24, 25, 26, 1, 2, 3, 4]


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_drafted_token_sees_what_is_before_it(
    lengths: list[int], nodes: int, tree: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    free = torch.randperm(SLOTS, generator=generator)
    bounds = list(accumulate((length + nodes for length in lengths), initial=0))
    plan = attention.AttentionPlan(free[: bounds[-1]], bounds)
    query = torch.randn((len(lengths) * nodes, HEADS, D), generator=generator)
    keys, values = (torch.randn((SLOTS, KV_HEADS, D), generator=generator) for _ in range(2))
    mask = None
    if tree:
        mask = torch.randint(2, (len(lengths), nodes, nodes), generator=generator).bool()
        mask |= torch.eye(nodes, dtype=torch.bool)
    found = drafts.attend(query, keys, values, plan, nodes, mask, 0.3)
    for i, length in enumerate(lengths):
        slots = free[bounds[i] : bounds[i + 1]]
        for node in range(nodes):
            if mask is None:
                seen = [*range(length + node + 1)]
            else:
                own = mask[i, node].nonzero().flatten().tolist()
                seen = [*range(length), *(length + other for other in own)]
            row = i * nodes + node
            for head in range(HEADS):
                of = head * KV_HEADS // HEADS
                weights = (keys[slots[seen], of] @ query[row, head] * 0.3).softmax(0)
                wanted = weights @ values[slots[seen], of]
                torch.testing.assert_close(found[row, head], wanted, atol=1e-5, rtol=1e-4)


def test_what_is_no_verification_is_left_to_sglang() -> None:
    mode = SimpleNamespace(is_target_verify=lambda: False)
    batch: Any = SimpleNamespace(forward_mode=mode)
    given: Any = (object(), 1, 2, 3, object(), batch)
    called = drafts._verify(lambda *args, **more: (args, more), *given, window=3)
    assert called == ((*given, True), {"window": 3})


def test_branches_have_slots_of_their_own() -> None:
    table = torch.arange(20).view(2, 10)
    found = drafts.branches(table, torch.tensor([1, 0]), torch.tensor([2, 3]), topk=2, steps=3)
    assert [row[:6].tolist() for row in found] == [
        [10, 11, 12, 13, 14, 15], [10, 11, 15, 16, 17, 15],
        [0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7, 8],
    ]  # fmt: skip
