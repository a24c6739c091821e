"""What the target hears with the last rows of KV: how many output tokens there are, and the last of
their ids.

It stands in the request's row of SGLang's metadata, in the places for log probabilities of a first
token: requests that want those are not moved.
"""

from collections.abc import Sequence
from typing import Any

LAST_IDS = 252
"""Ids that a row takes beside two counts; the target has heard of those before from the router."""


def write(buffers: Any, row: int, outputs: int, ids: Sequence[int]) -> None:
    """`ids`: the last of `outputs` ones, at most LAST_IDS."""
    import torch

    indices, values = _places(buffers, row)
    told = torch.tensor([outputs, len(ids), *ids], dtype=torch.int32)
    first, rest = told[: len(indices)], told[len(indices) :]
    indices[: len(first)] = first
    values[: len(rest)] = rest


def read(buffers: Any, row: int) -> tuple[int, list[int]]:
    """As they were written."""
    indices, values = _places(buffers, row)
    told: list[int] = [*indices.tolist(), *values.tolist()]
    return told[0], told[2 : 2 + max(0, min(told[1], LAST_IDS))]


def _places(buffers: Any, row: int) -> tuple[Any, Any]:
    import torch

    # 128 of each; what was meant as a float takes an id's four bytes as well.
    return (
        buffers.output_top_logprobs_idx[row],
        buffers.output_top_logprobs_val[row].view(torch.int32),
    )
