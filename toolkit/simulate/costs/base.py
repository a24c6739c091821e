"""What things take, in seconds, on one kind of hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


class CostModel(Protocol):
    """A step's time, without anything that is waited for.

    A group is the ranks that take a step together (DP attention), or a single rank.
    """

    def decode_s(
        self,
        requests: np.ndarray,
        kv_tokens: np.ndarray,
        distinct: float,
        longest: np.ndarray | None = None,
    ) -> float:
        """One decode step of a group whose ranks have these many requests [G] and KV tokens [G].
        `distinct`: expected distinct experts of the whole group, summed over MoE layers; where they
        are placed on several GPUs, of each layer those on the GPU that has most. `longest`: KV
        tokens of each rank's longest request [G], told where `costs.minds_lengths` says so; None:
        all of a rank are alike."""

    def prefill_s(self, parts: Sequence[tuple[int, int]]) -> float:
        """One forward pass over `(new tokens, tokens before them)` of each request in it."""

    def transfer_s(self, tokens: int) -> float:
        """The KV of so many tokens, from prefill to decode, with nothing else on the line."""

    def join_s(self, requests: int) -> float:
        """What a decode step takes more because so many requests begin with it."""
