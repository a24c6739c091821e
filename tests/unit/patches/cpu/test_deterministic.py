"""Kernels whose rows do not depend on the rows beside them, and the hash behind a seed."""

import struct
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from patches.cpu.deterministic import addmm, attend, bmm, mm, murmur
from tests.sglang_python import run_python

pytestmark = pytest.mark.touched("engine")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("turned", [True, False], ids=["weights", "plain"])
def test_a_row_of_a_product_is_the_same_beside_any_others(turned: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    left = torch.randn(40, 192, generator=draw)
    right = torch.randn(64, 192, generator=draw).t() if turned else torch.randn(192, 64)
    alone = torch.cat([mm(row[None], right) for row in left])
    assert torch.allclose(alone, left @ right, atol=1e-4)
    plain_differs = False
    for begin, end in ((0, 1), (0, 2), (3, 10), (5, 40)):
        assert torch.equal(mm(left[begin:end], right), alone[begin:end])
        added = torch.ones(64)
        assert torch.equal(addmm(added, left[begin:end], right), alone[begin:end] + 1)
        plain_differs |= not torch.equal((left[begin:end] @ right), (left @ right)[begin:end])
    assert plain_differs, "PyTorch's own product would do"
    twice = bmm(left.expand(2, *left.shape), right.expand(2, *right.shape))
    assert torch.equal(twice, torch.stack([alone, alone]))


def test_a_token_is_attended_to_alike_as_part_of_a_prompt_and_by_itself() -> None:
    draw = torch.Generator().manual_seed(2)
    query = torch.randn(30, 4, 64, generator=draw)
    keys, values = (torch.randn(50, 2, 64, generator=draw) for _ in range(2))
    prompt = torch.empty_like(query)
    attend(query, prompt, keys, values, first=20, scaling=None)
    for at in range(30):
        one = torch.empty_like(query[:1])
        seen = 21 + at
        attend(query[at : at + 1], one, keys[:seen], values[:seen], seen - 1, scaling=None)
        assert torch.equal(one[0], prompt[at])
    spread = [each.repeat_interleave(2, dim=1).transpose(0, 1) for each in (keys, values)]
    mask = torch.ones(50, 50, dtype=torch.bool).tril()[20:]
    whole = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1), *spread, attn_mask=mask
    )
    assert torch.allclose(whole.transpose(0, 1), prompt, atol=1e-5)


def reference(data: bytes) -> int:
    """MurmurHash3 of whole blocks of four bytes, from its description, in plain integers."""
    state, most = 0, 0xFFFFFFFF
    for (block,) in struct.iter_unpack("<I", data):
        block = block * 0xCC9E2D51 & most
        block = (block << 15 | block >> 17) & most
        state ^= block * 0x1B873593 & most
        state = (state << 13 | state >> 19) & most
        state = (state * 5 + 0xE6546B64) & most
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & most
    state = (state ^ state >> 13) * 0xC2B2AE35 & most
    return state ^ state >> 16


@given(
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    position=st.integers(0, 2**31 - 1),
)
def test_the_hash_is_that_of_seed_position_and_column(seeds: list[int], position: int) -> None:
    columns = torch.tensor([0, 1, 77, 151_935])
    at = torch.full((len(seeds),), position)
    found = murmur(torch.tensor(seeds).to(torch.uint64), at, columns)
    expected = [
        reference(struct.pack("<qII", seed, position, int(column)))
        for seed, column in product(seeds, columns)
    ]
    assert found.flatten().tolist() == expected


SAMPLED = """
from types import SimpleNamespace
import torch
import patches
from patches import base
base.enter(base.Process.SCHEDULER)
patches.register()
from sglang.srt.layers import sampler
from sglang.srt.sampling.sampling_params import TOP_K_ALL
sampler.get_exec = lambda: SimpleNamespace(kernel=SimpleNamespace(sampling_backend="pytorch"))
probs = torch.softmax(torch.randn(5, 300, generator=torch.Generator().manual_seed(0)), dim=-1)
top_k = torch.tensor([TOP_K_ALL, TOP_K_ALL, 1, 20, TOP_K_ALL])
top_p = torch.tensor([1.0, 0.7, 1.0, 1.0, 1.0])
seeds = torch.tensor([7, 7, 7, 8, 9])
def drawn(rows):
    info = SimpleNamespace(
        sampling_seed=seeds[rows], top_ks=top_k[rows], top_ps=top_p[rows],
        min_ps=torch.zeros(len(rows)), need_min_p_sampling=False, sampling_mask_batch_indices=None,
    )
    simple = bool((top_k[rows] == TOP_K_ALL).all() and (top_p[rows] == 1).all())
    at = torch.full((len(rows),), 5)
    found = sampler.Sampler._sample_from_probs(None, probs[rows].clone(), info, at, simple)
    return (found[0] if isinstance(found, tuple) else found).tolist()
print("alone", [drawn([row])[0] for row in range(5)])
print("together", drawn(list(range(5))))
"""


@pytest.mark.parametrize("without", [False, True])
def test_a_seed_draws_the_same_beside_whoever_selects(without: bool) -> None:
    """With SGLang's sampler alone it does not: then the patch has nothing to do."""
    out = "base.install = (lambda install: lambda patches: install("
    out += "[p for p in patches if p.name != 'seeded']))(base.install)\npatches.register()"
    code = SAMPLED.replace("patches.register()", out) if without else SAMPLED
    done = run_python(code)
    assert done.returncode == 0, done.stderr[-2000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines()[-2:])
    assert (said["alone"] == said["together"]) is not without
