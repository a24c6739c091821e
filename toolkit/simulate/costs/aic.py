"""NVIDIA's measured kernel times (the optional package `aiconfigurator-core`), and on top of them
what the number of distinct experts does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolkit.simulate.errors import SimulateError

if TYPE_CHECKING:
    import numpy as np

ATTENTION = ("attention", "mla")
MOE = ("moe",)
FINE = 4
"""Lengths are looked up 2^(FINE - 1) to 2^FINE times between two powers of 2."""


class AicSpec(BaseModel):
    """Which model on which machine. Sizes are of one decode server; `dp` ranks of attention.

    `distinct_base`: the MoE kernel's time is in proportion to `distinct_base` + distinct experts of
    a layer. 14.3 makes it 4.7 times slower from 16 to 128 active experts, as published (ELDR,
    arXiv 2607.00466, figure 2, Qwen3-30B-A3B at a fixed batch).
    `transfer_gb_s`, `transfer_base`: KV from prefill to decode, GB/s and seconds.
    `mixed`: as of linear costs, at most `mixed_most` times the attention. NVIDIA's kernels were
    measured with even lengths. On one H200 Triton's attention took 1.0e-8 s a token and layer of
    Qwen3-30B's shape, up to three times the attention (results/gpu/lengths.json); 0: lengths do not
    matter, as for kernels that share a long request out among the blocks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    system: str = "h200_sxm"
    version: str | None = None
    tp: Annotated[int, Field(ge=1)] = 1
    dp: Annotated[int, Field(ge=1)] = 1
    ep: Annotated[int, Field(ge=1)] = 1
    moe_layers: Annotated[int, Field(ge=0)] = 0
    """Those with experts; 0: the model is dense."""
    experts: Annotated[int, Field(ge=0)] = 0
    top_k: Annotated[int, Field(ge=0)] = 0
    kv_bytes: Annotated[float, Field(gt=0)]
    """Of one token, in all layers, on one rank."""
    quantisation: dict[str, str] = {}
    distinct_base: Annotated[float, Field(ge=0)] = 14.3
    transfer_gb_s: Annotated[float, Field(gt=0)] = 40.0
    transfer_base: Annotated[float, Field(ge=0)] = 0.003
    mixed: Annotated[float, Field(ge=0)] = 0.0
    mixed_most: Annotated[float, Field(ge=0)] = 3.0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = (self.moe_layers, self.experts, self.top_k)
        if any(given) and not all(given):
            raise ValueError("give moe_layers, experts and top_k together, or none (a dense model)")
        return self


class _Parts(NamedTuple):
    """Seconds of one step: attention, MoE, everything else."""

    attention: float
    moe: float
    rest: float


class Aic:
    """A `CostModel` of kernels that were measured one by one.

    A decode step is the sum of its kernels: attention on the rank where it takes longest, the rest
    at the batch of the fullest rank, to which SGLang pads the others under DP attention. The
    measured MoE kernel was fed with tokens that spread evenly over experts; with D distinct experts
    a layer it takes (b + D) / (b + D_even) of that, D_even = E * (1 - (1 - k / E)^n) for n tokens.
    Prefill: attention of each prompt on its own, the rest once for all tokens of the pass.

    Its engine takes 0.3 ms for a step, so a step's kernels are asked for once for each batch size
    and a few lengths; between these, where attention grows evenly, they are interpolated.
    """

    def __init__(self, spec: AicSpec) -> None:
        """SimulateError: the package is absent, or has no data for this."""
        self.spec = spec
        self._engine = _compile(spec)
        self._steps: dict[tuple[int, int], _Parts] = {}

    def decode_s(
        self,
        requests: np.ndarray,
        kv_tokens: np.ndarray,
        distinct: float,
        longest: np.ndarray | None = None,
    ) -> float:
        most = int(requests.max())
        attention = 0.0
        moe = rest = 0.0
        tall = [0] * len(requests) if longest is None else longest.tolist()
        ranks = zip(requests.tolist(), kv_tokens.tolist(), tall, strict=True)
        for count, tokens, tallest in ranks:
            if not count:
                continue
            length = max(1, round(tokens / count))
            parts = self._decode(count, length)
            more = self.spec.mixed * max(0.0, tallest - tokens / count)
            reading = parts.attention + min(more, self.spec.mixed_most * parts.attention)
            attention = max(attention, reading)
            if count == most:
                moe, rest = parts.moe, parts.rest
        if distinct and self.spec.moe_layers:
            moe *= self._locality(int(requests.sum()), distinct / self.spec.moe_layers)
        return attention + moe + rest

    def prefill_s(self, parts: Sequence[tuple[int, int]]) -> float:
        attention = sum(self._context(new, before).attention for new, before in parts)
        whole = self._context(sum(new for new, _ in parts), 0)
        return attention + whole.moe + whole.rest

    def transfer_s(self, tokens: int) -> float:
        moved = tokens * self.spec.kv_bytes / (self.spec.transfer_gb_s * 1e9)
        return self.spec.transfer_base + moved

    def join_s(self, requests: int) -> float:
        return 0.0  # not in that data

    def _decode(self, count: int, length: int) -> _Parts:
        """Of a step of `count` requests of that length."""
        apart = 1 << max(0, length.bit_length() - FINE)
        below = length - length % apart
        first = self._at(count, max(1, below))
        if below == length:
            return first
        second, share = self._at(count, below + apart), (length - below) / apart
        return _Parts(*(a + share * (b - a) for a, b in zip(first, second, strict=True)))

    def _at(self, count: int, length: int) -> _Parts:
        found = self._steps.get((count, length))
        if found is None:
            found = _split(self._engine.decode_step_per_op(count, length, 2))
            self._steps[count, length] = found
        return found

    def _context(self, new: int, before: int) -> _Parts:
        ops, _ = self._engine.run_static_per_op(
            batch_size=1, isl=new + before, osl=1, prefix=before, mode="static_ctx"
        )
        return _split(ops)

    def _locality(self, tokens: int, distinct: float) -> float:
        spec = self.spec
        even = spec.experts * (1 - (1 - spec.top_k / spec.experts) ** tokens)
        return (spec.distinct_base + distinct) / (spec.distinct_base + even)


def _compile(spec: AicSpec) -> Any:
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError as error:
        raise SimulateError(
            "this cost model needs NVIDIA's measured data: pip install aiconfigurator-core"
        ) from error
    try:
        return EngineHandle.compile(
            spec.model,
            spec.system,
            "sglang",
            backend_version=spec.version,
            tp_size=spec.tp,
            attention_dp_size=spec.dp,
            moe_ep_size=spec.ep,
            moe_tp_size=1,
            **spec.quantisation,
        )
    except Exception as error:  # its errors have no common base
        raise SimulateError(
            f"aiconfigurator-core has nothing for {spec.model} on {spec.system}: {error}"
        ) from error


def _split(ops: Sequence[tuple[str, float, float, str]]) -> _Parts:
    """Operations (name, ms, ..) by what they depend on."""
    attention = sum(ms for name, ms, *_ in ops if any(part in name for part in ATTENTION))
    moe = sum(ms for name, ms, *_ in ops if any(part in name for part in MOE))
    return _Parts(attention / 1e3, moe / 1e3, (sum(op[1] for op in ops) - attention - moe) / 1e3)
