"""Plain-torch stand-ins of the CPU kernels that speculative decoding calls.

They do what SGLang's Triton versions do (kernels/ops/speculative/{spec_tree,reconstruct_tree,eagle,
cache_locs}.py of 0.5.21), in place. A batch here has tens of rows and a tree tens of nodes, so
loops over lists take well below a millisecond beside a CPU forward of several.
"""

import torch
from torch import Tensor

QLEN_ONLY = 1
"""SGLang's `TreeMaskMode` on a CPU: a mask [batch, nodes, nodes] of a tree's own nodes."""


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """`out_cache_loc`: the slots `[start, end)` of one request after the other. What is behind them
    stays as it is: the caller has put the padding slot there."""
    at = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        out_cache_loc[at : at + end - start] = req_to_token[row, start:end]
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """`out_cache_loc` [batch * topk * num_steps]: the slots behind each request's tokens."""
    count = topk * num_steps
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for i, (row, start) in enumerate(rows):
        out_cache_loc[i * count : (i + 1) * count] = req_to_token[row, start : start + count]


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """The tree that a verification runs over. Node 0 is the last accepted token, node i > 0 the
    candidate `selected_index[b, i - 1]`, a place in the flattened candidates of all draft steps.

    `selected // topk` is the group in which a candidate was drafted. Group 0 hangs on the root; the
    parent of group g is the candidate `parent_list[b, g]`. `tree_mask` says which nodes a node
    sees: the root, itself, and those between. `retrieve_next_token` is a node's first child,
    `retrieve_next_sibling` its parent's next one; the caller has filled both with -1 for none.
    """
    if int(tree_mask_mode) != QLEN_ONLY:
        raise NotImplementedError("only TreeMaskMode.QLEN_ONLY, which SGLang takes on a CPU")
    nodes = draft_token_num
    mask = tree_mask.view(-1, nodes, nodes)
    parents_of_groups, selected = parent_list.tolist(), selected_index.tolist()
    for b, length in enumerate(verified_seq_len.tolist()):
        places = reversed(list(enumerate(selected[b])))
        place = {candidate: i + 1 for i, candidate in places}
        above = [-1] * nodes
        for i in range(1, nodes):
            group = selected[b][i - 1] // topk
            above[i] = place.get(parents_of_groups[b][group], -1) if group else 0
        retrieve_index[b] = torch.arange(b * nodes, (b + 1) * nodes)
        for i in range(nodes - 1, 0, -1):
            if above[i] >= 0:
                retrieve_next_sibling[b, i] = retrieve_next_token[b, above[i]]
                retrieve_next_token[b, above[i]] = i
        for i in range(nodes):
            mask[b, i] = False
            mask[b, i, 0] = True
            at, deep = i, 0
            while at > 0:
                mask[b, i, at] = True
                deep += 1
                at = above[at]
            positions[b * nodes + i] = length + deep


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down each tree as long as a child is what the target predicts.

    `accept_index` [batch, depth + 1]: places of the accepted nodes, the root first; the caller has
    filled it with -1. `accept_token_num` counts them without the root. `predicts` at an accepted
    place is the token that follows it, so the last accepted place has the target's own next token.
    """
    targets = target_predict.reshape(-1).tolist()
    drafts = candidates.tolist()
    index, child, sibling = (
        each.tolist() for each in (retrive_index, retrive_next_token, retrive_next_sibling)
    )
    most = accept_index.shape[1]
    for b in range(len(drafts)):
        last, at, accepted = index[b][0], 0, 0
        accept_index[b, 0] = last
        while accepted < most - 1:
            at = child[b][at]
            while at != -1 and drafts[b][at] != targets[last]:
                at = sibling[b][at]
            if at == -1:
                break
            predicts[last] = targets[last]
            last = index[b][at]
            accepted += 1
            accept_index[b, accepted] = last
        accept_token_num[b] = accepted
        predicts[last] = targets[last]


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """`bonus_tokens` [batch]: each request's last accepted token, which `accept_lens` counts."""
    rows = torch.arange(len(accept_lens)) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[rows])


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Slots of the accepted nodes, without gaps, at the beginning of `accept_out_cache_loc`."""
    kept = accept_index.reshape(-1)
    kept = kept[kept > -1].long()
    accept_out_cache_loc[: len(kept)] = out_cache_loc[kept]


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """The same links of NGRAM's trees, from a mask [batch, nodes, nodes] of a node's ancestors; its
    parent is the last of them."""
    nodes = draft_token_num
    mask = tree_mask.view(-1, nodes, nodes)[:batch_size]
    order = torch.arange(nodes)
    ancestors = mask & (order[None, :] < order[:, None])
    positions.view(-1, nodes)[:batch_size] = ancestors.sum(-1) + verified_seq_len[:, None]
    retrieve_index.copy_(torch.arange(batch_size * nodes).view(batch_size, nodes))
    parents = torch.where(ancestors, order, -1).amax(-1).tolist()
    retrieve_next_token.fill_(-1)
    retrieve_next_sibling.fill_(-1)
    for b in range(batch_size):
        for i in range(nodes - 1, 0, -1):
            if (parent := parents[b][i]) >= 0:
                retrieve_next_sibling[b, i] = retrieve_next_token[b, parent]
                retrieve_next_token[b, parent] = i
