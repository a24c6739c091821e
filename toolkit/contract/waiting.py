"""In which order a worker prefills what waits: `prefill.waiting` of a deployment file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Age = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Waiting(BaseModel):
    """`fcfs` is SGLang's own order; `sjf`: the shortest uncached prompt first, one that has waited
    `age_s` before all others of its priority, one that has waited `class_age_s` before all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Literal["fcfs", "sjf"] = Field(
        description="`fcfs`: first come, first served; `sjf`: shortest uncached prompt first"
    )
    age_s: Age = Field(
        default=5.0,
        description="with `sjf`: a prompt that waited this long goes before others of its "
        "priority, seconds",
    )
    class_age_s: Age | None = Field(
        default=None,
        description="with `sjf`: a prompt that waited this long goes before all, seconds",
    )

    @model_validator(mode="after")
    def _ages_are_for_sjf(self) -> Waiting:
        if self.order == "fcfs" and self.model_fields_set - {"order"}:
            raise ValueError("age_s and class_age_s are for order: sjf")
        return self

    @property
    def text(self) -> str:
        """For WAITING_VARIABLE: `sjf:AGE_S` or `sjf:AGE_S:CLASS_AGE_S`; empty for SGLang's own
        order."""
        if self.order == "fcfs":
            return ""
        ages = [self.age_s] if self.class_age_s is None else [self.age_s, self.class_age_s]
        return ":".join([self.order, *(f"{age:g}" for age in ages)])

    @classmethod
    def read(cls, text: str) -> Waiting:
        """What `text` wrote. ValueError (pydantic's ValidationError is one): something else."""
        if not text.strip():
            return cls(order="fcfs")
        parts = text.strip().split(":")
        names = ("order", "age_s", "class_age_s")
        if len(parts) > len(names):
            raise ValueError(f"{len(parts)} parts, at most {':'.join(names)}")
        return cls.model_validate(dict(zip(names, parts, strict=False)))


def from_yaml(value: object) -> object:
    """`waiting: sjf` is short for `waiting: {order: sjf}`."""
    return {"order": value} if isinstance(value, str) else value
