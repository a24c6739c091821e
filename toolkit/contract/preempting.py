"""When a worker stops best-effort prefills, or pauses best-effort answers: `prefill.preempt` and
`decode.preempt` of a deployment file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Preempting(BaseModel):
    """A best-effort prefill is looked at every `slice` layers; `policy` says whether it yields to
    latency-sensitive requests that wait: `strict`, `deadline@MARGIN_S`, `fair@SHARE`, or one's own,
    as MODULE:NAME. `experts`: it is looked at within a layer, too. One request is stopped `pauses`
    times, and for `seconds` in all, at most. `slo_s`: of latency-sensitive requests, from their
    arrival in the worker to their first token; `deadline` goes by it. On decode workers best-effort
    answers are paused as often and as long; the rest has no meaning there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = Field(
        default="strict", description="`strict`, `deadline@MARGIN_S`, `fair@SHARE` or MODULE:NAME"
    )
    slice: int = Field(default=1, ge=1, description="layers between two looks")
    experts: int = Field(
        default=0, ge=0, description="on CPU: experts of a layer between two looks; 0: none"
    )
    pauses: int = Field(default=32, ge=0, description="how often one request is stopped at most")
    seconds: float = Field(
        default=10.0, ge=0, allow_inf_nan=False, description="for how long, in all"
    )
    slo_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="to the first token of latency-sensitive requests (`deadline`)"
    )

    @property
    def only_bounds(self) -> bool:
        """Whether it says no more than a decode worker can do: it pauses whole answers."""
        return self == Preempting(pauses=self.pauses, seconds=self.seconds)

    @property
    def text(self) -> str:
        """For PREEMPT_VARIABLE."""
        return self.model_dump_json(exclude_defaults=True)  # `{}` of the defaults

    @classmethod
    def read(cls, text: str) -> Preempting | None:
        """What `text` wrote, None of an empty one. ValueError: something else."""
        return cls.model_validate_json(text) if text.strip() else None


def from_yaml(value: object) -> object:
    """`preempt: strict` is short for `preempt: {policy: strict}`."""
    return {"policy": value} if isinstance(value, str) else value
