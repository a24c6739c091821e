"""Linear coefficients, by hand or by a fit: every term in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from toolkit.simulate.fleet import Machine

if TYPE_CHECKING:
    import numpy as np


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Decode(_Strict):
    """A decode step: base + per_token * n + per_distinct * experts for the whole group, and
    per_request * n_g + per_kv_token * KV_g for the rank on which that takes longest (attention).
    `per_join`: once for each request that begins with it (its KV was received and looked up)."""

    base: float = Field(ge=0)
    per_request: Annotated[float, Field(ge=0)] = 0.0
    per_kv_token: Annotated[float, Field(ge=0)] = 0.0
    per_distinct: Annotated[float, Field(ge=0)] = 0.0
    per_token: Annotated[float, Field(ge=0)] = 0.0
    per_join: Annotated[float, Field(ge=0)] = 0.0


class Prefill(_Strict):
    """A prefill step: base + per_token * new + per_pair * sum of new * (before + new / 2).
    `per_slice`: a look between two slices of a best-effort one (`toolkit.simulate.preemption`)."""

    base: float = Field(ge=0)
    per_token: float = Field(ge=0)
    per_pair: Annotated[float, Field(ge=0)] = 0.0
    per_slice: Annotated[float, Field(ge=0)] = 0.0


class Transfer(_Strict):
    """KV of one request: base + per_token * tokens."""

    base: Annotated[float, Field(ge=0)] = 0.0
    per_token: Annotated[float, Field(ge=0)] = 0.0


class Linear(_Strict):
    """A `CostModel` of coefficients, in seconds. `machine`: what workers lose beside each other."""

    decode: Decode
    prefill: Prefill
    transfer: Transfer = Transfer()
    machine: Machine = Machine()

    def decode_s(self, requests: np.ndarray, kv_tokens: np.ndarray, distinct: float) -> float:
        d = self.decode
        if len(requests) == 1:
            count = float(requests[0])
            heaviest = d.per_request * count + d.per_kv_token * float(kv_tokens[0])
        else:
            count = float(requests.sum())
            heaviest = float((d.per_request * requests + d.per_kv_token * kv_tokens).max())
        return d.base + heaviest + d.per_distinct * distinct + d.per_token * count

    def prefill_s(self, parts: Sequence[tuple[int, int]]) -> float:
        p = self.prefill
        new = sum(each for each, _ in parts)
        pairs = sum(each * (before + each / 2) for each, before in parts) if p.per_pair else 0.0
        return p.base + p.per_token * new + p.per_pair * pairs

    def transfer_s(self, tokens: int) -> float:
        return self.transfer.base + self.transfer.per_token * tokens

    def join_s(self, requests: int) -> float:
        return self.decode.per_join * requests
