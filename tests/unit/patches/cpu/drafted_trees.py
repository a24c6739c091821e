"""The stand-ins of speculative decoding beside SGLang's own Triton kernels, which run interpreted.

Run as a program, with `TRITON_INTERPRET=1` in the environment before Triton is imported; prints how
many trees were the same to the last value.
"""

import importlib
import random
from typing import Any

import torch

from patches import stubs

stubs.put_on_path()
ours = importlib.import_module("sgl_kernel.speculation")

TREES = 60


def drafted(batch: int, topk: int, steps: int, nodes: int) -> tuple[Any, Any, Any]:
    """Parents, selected candidates and their tokens, as SGLang's `draft_forward` and
    `organize_draft_results` make them, with random scores."""
    scores = torch.rand(batch, topk)
    every, tokens = [scores], [torch.randint(6, (batch, topk))]
    parents = [torch.arange(-1, topk).repeat(batch, 1)]
    for step in range(1, steps):
        expanded = scores[:, :, None] * torch.rand(batch, topk, topk)
        scores, index = expanded.flatten(1).topk(topk)
        every.append(expanded.flatten(1))
        tokens.append(torch.randint(6, (batch, topk * topk)))
        parents.append(index + topk**2 * (step - 1) + topk)
    selected = torch.cat(every, 1).topk(nodes - 1).indices.sort().values
    held = torch.cat(parents[:-1], 1) if steps > 1 else torch.empty(batch, 0, dtype=torch.long)
    return held, selected, torch.cat(tokens, 1).gather(1, selected)


def links(batch: int, nodes: int) -> tuple[Any, ...]:
    """Empty mask, positions, index, first child and next sibling."""
    mask = torch.ones(batch * nodes * nodes, dtype=torch.bool)
    empty = [torch.full((batch, nodes), -1, dtype=torch.long) for _ in range(3)]
    return (mask, torch.zeros(batch * nodes, dtype=torch.long), *empty)


def one(theirs: Any) -> None:
    """Build, verify and take apart one batch of trees."""
    batch, topk, steps = random.randint(1, 4), random.choice([1, 1, 2, 4]), random.randint(1, 4)
    most = topk + (steps - 1) * topk * topk
    nodes = steps + 1 if topk == 1 else random.randint(2, min(12, most + 1))
    parents, selected, tokens = drafted(batch, topk, steps, nodes)
    lengths = torch.randint(3, 40, (batch,))
    built, wanted = links(batch, nodes), links(batch, nodes)
    sizes = (topk, steps, nodes, ours.QLEN_ONLY)
    ours.build_tree_kernel_efficient_cpu(parents, selected, lengths, *built, *sizes)
    theirs.sgl_build_tree_kernel_efficient_triton[(batch,)](
        *(parents, selected, lengths, torch.cumsum(lengths, 0) - lengths, *wanted),
        topk=topk,
        depth=steps,
        draft_token_num=nodes,
        tree_mask_mode=1,
        batch_size=batch,
        parent_list_stride=parents.stride(0),
        selected_index_stride=selected.stride(0),
    )
    for mine, other in zip(built, wanted, strict=True):
        assert torch.equal(mine, other), (topk, steps, nodes, mine, other)
    again = links(batch, nodes)
    ours.reconstruct_indices_from_tree_mask(built[0], lengths, *again[1:], batch, nodes)
    for mine, other in zip(again[1:], built[1:], strict=True):
        assert torch.equal(mine, other), (topk, steps, nodes, mine, other)
    candidates = torch.cat((torch.randint(6, (batch, 1)), tokens), 1)
    target = torch.randint(6, (batch, nodes))

    def verified(verify: Any) -> tuple[Any, Any, Any]:
        predicts = torch.zeros(batch * nodes, dtype=torch.int32)
        index = torch.full((batch, steps + 1), -1, dtype=torch.int32)
        count = torch.empty(batch, dtype=torch.int32)
        verify(predicts, index, count, candidates, *built[2:], target)
        return predicts, index, count

    def interpreted(*tensors: Any) -> None:
        theirs.verify_tree_greedy_kernel_triton[(batch,)](
            *tensors, batch_size=batch, num_speculative_tokens=steps + 1, num_draft_tokens=nodes
        )

    found = verified(ours.verify_tree_greedy_cpu)
    for mine, other in zip(found, verified(interpreted), strict=True):
        assert torch.equal(mine, other.to(mine.dtype)), (topk, steps, nodes, mine, other)
    predicts, index, count = found
    accepted, bonus = predicts[index.long()], torch.empty(batch, dtype=torch.int32)
    ours.fill_bonus_tokens_cpu(accepted, count + 1, bonus, steps + 1)
    assert bonus.tolist() == [int(accepted[i, int(count[i])]) for i in range(batch)]
    slots = torch.randperm(batch * nodes)
    kept = torch.zeros(batch * (steps + 1), dtype=torch.long)
    ours.fill_accept_out_cache_loc_cpu(index, slots, kept)
    places = [int(slots[place]) for row in index.tolist() for place in row if place >= 0]
    assert kept.tolist() == places + [0] * (len(kept) - len(places))


def main() -> None:
    """All of them."""
    random.seed(1)
    torch.manual_seed(1)
    theirs = importlib.import_module("sglang.kernels.ops.speculative.spec_tree")
    for _ in range(TREES):
        one(theirs)
    print(TREES)


if __name__ == "__main__":
    main()
