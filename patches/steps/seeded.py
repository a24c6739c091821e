"""With `--enable-deterministic-inference` a request's tokens do not depend on who else samples.

There SGLang draws a token by a hash of the request's seed, its position and a column. What a
column is depends on the batch (`srt/layers/sampler.py`, all supported releases): an id of the
vocabulary, or, as soon as one request in the batch is greedy or has `top_k` or `top_p`, its
place among the ids in order of probability. So one seed says two things, by who is beside. Here
each request gets the token that it gets by itself.
"""

from typing import Any

from patches.base import Hook, Patch, Process

SAMPLER = "sglang.srt.layers.sampler"


def _each_by_itself(
    original: Any,
    sampler: Any,
    probs: Any,
    sampling_info: Any,
    positions: Any,
    simple_sampling_case: bool,
) -> Any:
    found = original(sampler, probs, sampling_info, positions, simple_sampling_case)
    if sampling_info.sampling_seed is None or simple_sampling_case:
        return found
    tokens, *captured = found if isinstance(found, tuple) else (found,)
    if any(each is not None for each in captured):
        return found  # what is told of the candidates is of these tokens
    own = in_order_of_ids(probs, sampling_info, positions, tokens)
    return (own, *captured) if captured else own


def in_order_of_ids(probs: Any, info: Any, positions: Any, tokens: Any) -> Any:
    """`tokens` [requests], those of requests that ask for no selection drawn as without others.

    `probs`: [requests, vocabulary]. Nothing here waits for a GPU.
    """
    import torch
    from sglang.srt.layers.sampler import sampling_from_probs_torch
    from sglang.srt.sampling.sampling_params import TOP_K_ALL

    whole = (info.top_ks == TOP_K_ALL) & (info.top_ps == 1) & (info.min_ps <= 0)
    alone = sampling_from_probs_torch(probs, info.sampling_seed, positions)
    return torch.where(whole, alone, tokens)


PATCH = Patch(
    name="seeded",
    why="with deterministic inference a seed says two things, by who else is in the batch",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(
        Hook(
            f"{SAMPLER}.Sampler._sample_from_probs",
            _each_by_itself,
            ("self", "probs", "sampling_info", "positions", "simple_sampling_case"),
        ),
    ),
    requires=(
        f"{SAMPLER}.sampling_from_probs_torch",
        "sglang.srt.sampling.sampling_params.TOP_K_ALL",
    ),
)
