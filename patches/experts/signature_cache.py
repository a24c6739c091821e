"""Experts of every KV slot's token on the model's device, and the counts of a prompt's slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCK_TOKENS = 8192
"""Tokens counted at a time: bounds the temporaries, about 10 bytes for each of their ids."""
SPILL = 256
"""Bins after the last layer: a byte that holds an unknown id counts for some expert up to 255, in a
later layer perhaps. Its row's flag makes the whole signature incomplete."""


@dataclass
class SignatureCache:
    """`rows` [slots, width] on the device: the experts of a token, layer by layer, and whether they
    are known.

    S layers of the mask, k experts a token, E experts a layer: a row is S * k ids, then one flag (0
    in fresh memory: unknown), then up to 7 bytes of filling. One byte each up to 256 experts, two
    above. A row is a whole number of 8-byte words and is moved as such: by single bytes the copy
    takes four times as long.
    """

    layers: list[int]
    experts: int
    top_k: int
    rows: torch.Tensor

    @classmethod
    def create(
        cls, slots: int, layers: list[int], experts: int, top_k: int, device: object
    ) -> SignatureCache:
        import torch

        dtype = torch.uint8 if experts <= 256 else torch.int16
        per_word = 8 // dtype.itemsize
        words = -(-(len(layers) * top_k + 1) // per_word)
        rows = torch.zeros((slots, words * per_word), dtype=dtype, device=device)
        return cls(layers, experts, top_k, rows)

    @property
    def ids(self) -> int:
        """Of a token: S * k."""
        return len(self.layers) * self.top_k

    @property
    def bins(self) -> int:
        """Counts of a request: S * E."""
        return len(self.layers) * self.experts

    @cached_property
    def _offsets(self) -> torch.Tensor:
        """[S * k]: where each id's layer begins among the bins."""
        import torch

        dtype = torch.int16 if self.bins <= torch.iinfo(torch.int16).max else torch.int32
        starts = torch.arange(len(self.layers), dtype=dtype, device=self.rows.device)
        return (starts * self.experts).repeat_interleave(self.top_k)

    @cached_property
    def _kept(self) -> torch.Tensor:
        import torch

        return torch.tensor(self.layers, device=self.rows.device)

    @cached_property
    def _one(self) -> torch.Tensor:
        import torch

        return torch.ones((), dtype=torch.int32, device=self.rows.device)

    def record(self, slots: torch.Tensor, topk: torch.Tensor) -> None:
        """Write rows: `slots` [T] and `topk` [T, all layers, >= k] of int32, -1 for unknown."""
        import torch

        kept = topk[:, :, : self.top_k]
        if len(self.layers) < topk.shape[1]:
            kept = kept.index_select(1, self._kept)
        if self.rows.dtype == torch.int16:
            kept = kept.clamp(min=0)  # as a byte it wraps, see `SPILL`
        fresh = self.rows.new_empty((len(kept), self.rows.shape[1]))
        fresh[:, : self.ids] = kept.reshape(len(kept), self.ids)
        # A layer is captured for all tokens of a forward or for none: one token tells.
        fresh[:, self.ids] = (topk[:1].index_select(1, self._kept) >= 0).all()
        self.rows.view(torch.int64)[slots.long()] = fresh.view(torch.int64)

    def forget(self, slots: torch.Tensor) -> None:
        """These slots [T] get KV that no forward of ours computed."""
        self.rows[slots.long()] = 0

    def count(self, slots: torch.Tensor) -> torch.Tensor:
        """Of the tokens in `slots` [T]: int32 [S * E + 1], last how many of them are known."""
        return self.count_each([slots])[0]

    def count_each(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same of each of these prompts, [R, S * E + 1]."""
        import torch

        if self.rows.device.type == "cpu":
            return torch.stack([self._count_on_host(slots) for slots in prompts])
        return self.count_together(prompts)

    def _count_on_host(self, slots: torch.Tensor) -> torch.Tensor:
        import torch

        counts = torch.zeros(self.bins + SPILL, dtype=torch.int32)
        known = torch.zeros(1, dtype=torch.int32)
        for part in slots.split(BLOCK_TOKENS):
            rows = self.rows.index_select(0, part)
            flat = (rows[:, : self.ids] + self._offsets).view(-1)
            counts += torch.bincount(flat, minlength=len(counts))
            known += rows[:, self.ids].sum()
        return torch.cat([counts[: self.bins], known])

    def count_together(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same for an accelerator, in one pass over the tokens of all prompts: about as many
        launches for sixteen of them as for one. `bincount` would wait to look at its input."""
        import torch

        width, device = self.bins + SPILL, self.rows.device
        counts = torch.zeros(len(prompts) * width, dtype=torch.int32, device=device)
        known = torch.zeros(len(prompts), dtype=torch.int32, device=device)
        # Whose a token is, without a copy from the host, which would wait for the forward.
        numbers = torch.arange(len(prompts), device=device).split(1)
        owners = torch.cat([n.expand(len(p)) for n, p in zip(numbers, prompts, strict=True)])
        parts = torch.cat([*prompts]).split(BLOCK_TOKENS)
        for slots, of in zip(parts, owners.split(BLOCK_TOKENS), strict=True):
            rows = self.rows.index_select(0, slots)
            bins = rows[:, : self.ids] + self._offsets + (of * width).unsqueeze(1)
            flat = bins.view(-1)
            counts.scatter_add_(0, flat, self._one.expand(len(flat)))
            known.scatter_add_(0, of, rows[:, self.ids].int())
        each = counts.view(len(prompts), width)[:, : self.bins]
        return torch.cat([each, known.unsqueeze(1)], dim=1)
