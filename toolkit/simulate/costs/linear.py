"""Linear coefficients, by hand or by a fit: every term in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from toolkit.simulate.costs.links import DEEPEP_NAME, Links, deepep
from toolkit.simulate.fleet import Machine

if TYPE_CHECKING:
    import numpy as np


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Decode(_Strict):
    """A decode step: base + per_token * n + per_distinct * experts for the whole group, and
    per_request * n_g + per_kv_token * KV_g for the rank on which that takes longest (attention).
    `per_join`: once for each request that begins with it (its KV was received and looked up).

    `mixed`: seconds for each KV token by which a rank's longest request is above the mean of its
    batch, KV_g / n_g: the other blocks are done and wait for those of the longest. In all at most
    `mixed_most` times the attention, per_kv_token * KV_g. 0: lengths do not matter. Attention
    kernels were measured at 1.1 to 2.1 times their time on mixed lengths of the same total
    (CascadeInfer, 2.3), hence the 1.1 more; the form of the term is ours.
    """

    base: float = Field(ge=0)
    per_request: Annotated[float, Field(ge=0)] = 0.0
    per_kv_token: Annotated[float, Field(ge=0)] = 0.0
    per_distinct: Annotated[float, Field(ge=0)] = 0.0
    per_token: Annotated[float, Field(ge=0)] = 0.0
    per_join: Annotated[float, Field(ge=0)] = 0.0
    mixed: Annotated[float, Field(ge=0)] = 0.0
    mixed_most: Annotated[float, Field(ge=0)] = 1.1


class Prefill(_Strict):
    """A prefill step: base + per_token * new + per_pair * sum of new * (before + new / 2).
    `per_slice`: a look between two slices of a best-effort one (`toolkit.simulate.preemption`)."""

    base: float = Field(ge=0)
    per_token: float = Field(ge=0)
    per_pair: Annotated[float, Field(ge=0)] = 0.0
    per_slice: Annotated[float, Field(ge=0)] = 0.0


class TransferCost(_Strict):
    """KV of one request: base + per_token * tokens."""

    base: Annotated[float, Field(ge=0)] = 0.0
    per_token: Annotated[float, Field(ge=0)] = 0.0


class Linear(_Strict):
    """A `CostModel` of coefficients, in seconds. `machine`: what workers lose beside each other.
    `links`: what the all-to-all of experts that are placed on GPUs takes (`costs.links`), "deepep"
    as DeepEP measured it; None: nothing. `accepted`: tokens that a step gave a request, where these
    are steps with a draft; None: where they are steps of one token."""

    decode: Decode
    prefill: Prefill
    transfer: TransferCost = TransferCost()
    machine: Machine = Machine()
    links: Links | None = None
    accepted: Annotated[float | None, Field(ge=1)] = None

    @field_validator("links", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return deepep() if value == DEEPEP_NAME else value

    def decode_s(
        self,
        requests: np.ndarray,
        kv_tokens: np.ndarray,
        distinct: float,
        longest: np.ndarray | None = None,
    ) -> float:
        d = self.decode
        if d.mixed and longest is not None:
            ranks = zip(requests.tolist(), kv_tokens.tolist(), longest.tolist(), strict=True)
            heaviest = max(self._attention_s(*rank) for rank in ranks)
        elif len(requests) == 1:
            heaviest = d.per_request * float(requests[0]) + d.per_kv_token * float(kv_tokens[0])
        else:
            each = d.per_request * requests + d.per_kv_token * kv_tokens
            heaviest = max(each.tolist())  # of few ranks sooner than numpy's
        seconds = d.base + heaviest + d.per_distinct * distinct
        return seconds + d.per_token * float(requests.sum()) if d.per_token else seconds

    def _attention_s(self, requests: int, kv_tokens: int, longest: int) -> float:
        """What grows with a rank's batch, its lengths being mixed."""
        if not requests:
            return 0.0
        d = self.decode
        attention = d.per_kv_token * kv_tokens
        more = d.mixed * max(0.0, longest - kv_tokens / requests)
        return d.per_request * requests + attention + min(more, d.mixed_most * attention)

    def prefill_s(self, parts: Sequence[tuple[int, int]]) -> float:
        p = self.prefill
        new = sum(each for each, _ in parts)
        pairs = sum(each * (before + each / 2) for each, before in parts) if p.per_pair else 0.0
        return p.base + p.per_token * new + p.per_pair * pairs

    def transfer_s(self, tokens: int) -> float:
        return self.transfer.base + self.transfer.per_token * tokens

    def join_s(self, requests: int) -> float:
        return self.decode.per_join * requests
