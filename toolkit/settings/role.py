"""The workers of one role: `prefill`, `decode` or `worker`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from toolkit.contract.preempting import Preempting
from toolkit.contract.waiting import Waiting
from toolkit.policies.preemption.named import boundary_policy
from toolkit.policies.stages.layout import Layout
from toolkit.settings.rules import CPU, CUDA
from toolkit.settings.section import Count, Port, Section, Share, Short, key
from toolkit.settings.stages import Stage, check_shape, layout_of, with_replicas

Part = Annotated[float, Field(gt=0, lt=1)]


class Role(Section):
    """The workers of one role: all replicas alike. Sizes are per replica."""

    replicas: Count = key(1, "how many servers of this role")
    nodes: Count = key(1, "hosts that one replica spans")
    hosts: list[str] | None = key(None, "host names, `nodes` for each replica")
    tp: Count = key(1, "tensor parallel size of one replica")
    dp: Count = key(1, "data parallel ranks of one replica")
    ep: Count = key(1, "expert parallel size of one replica; divides `tp`")
    dp_attention: bool = key(False, "DP ranks share their experts and take their steps together")
    dp_policy: str | None = key(
        None,
        "how SGLang itself chooses the DP rank of a request: a policy, or its own method; without "
        "our router, which chooses ranks itself",
    )
    gpus: list[int] | None = key(None, "GPU indices on each host; default: next free", CUDA)
    kv_tokens: Count | None = key(None, "KV budget in tokens, per DP rank")
    max_running: Count | None = key(None, "requests in flight, per server")
    mem_fraction: Part | None = key(None, "share of the GPU's memory for weights and KV cache")
    background: bool = key(
        False, "the model computes while nothing else wants the core (workers share few)", CPU
    )
    early_place: bool = key(
        False, "decode ranks of one process each look at new requests while a step runs too"
    )
    relocate: bool = key(False, "its experts can be moved to other GPUs while it serves")
    expert_placement: Literal["clusters"] | None = key(
        None,
        "decode only: each server starts with its experts (redundant ones too) placed by the "
        "requests of `router.profile` that ELDR sends to it",
    )
    waiting: Annotated[Waiting, Short("order")] = key(
        Waiting(order="fcfs"), "in which order waiting prompts are prefilled"
    )
    early_choice: Share | None = key(
        0.03,
        "prefill only, with late dispatch: of a long prompt's prefill time, what must be saved for "
        "its decode worker to be chosen while the last chunks run; null: never",
    )
    preempt: Annotated[Preempting | None, Short("policy")] = key(
        None, "best-effort prompts give way to latency-sensitive requests"
    )
    stages: list[Stage] | None = key(
        None,
        "decode only: ranges of lengths in KV tokens, shortest first, and the servers of each: "
        "`[{upto: 512, replicas: 2}, {replicas: 1}]`",
    )
    port: Port | None = key(None, "HTTP port of the first replica")
    bootstrap_port: Port | None = key(None, "port of the KV bootstrap server of the first replica")
    args: dict[str, Any] = key({}, "more SGLang flags")
    env: dict[str, str] = key({}, "environment of this role's processes")

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_its_stages(cls, data: Any) -> Any:
        return with_replicas(data)

    @field_validator("stages")
    @classmethod
    def _stages_are_ranges(cls, stages: list[Stage] | None) -> list[Stage] | None:
        if stages is not None:
            check_shape(stages)
        return stages

    @field_validator("preempt")
    @classmethod
    def _known_boundary_policy(cls, preempt: Preempting | None) -> Preempting | None:
        if preempt is not None and ":" not in preempt.policy:  # one's own is the worker's to import
            boundary_policy(preempt.policy)
        return preempt

    @model_validator(mode="after")
    def _sizes(self) -> Role:
        if self.dp_attention and self.tp % self.dp:
            raise ValueError(f"dp_attention: tp ({self.tp}) must be a multiple of dp ({self.dp})")
        if self.tp % self.ep:
            raise ValueError(f"tp ({self.tp}) must be a multiple of ep ({self.ep})")
        several = self.ep > 1 and self.ep == self.tp
        if self.relocate and not several:
            raise ValueError(
                f"relocate: experts move between GPUs: set ep to tp ({self.tp}), 2 or more, "
                f"not {self.ep}"
            )
        if self.expert_placement and not several:
            raise ValueError(
                f"expert_placement: experts lie on several GPUs: set ep to tp ({self.tp}), 2 or "
                f"more, not {self.ep}"
            )
        if self.ranks % self.nodes:
            raise ValueError(f"{self.ranks} ranks do not spread evenly over {self.nodes} nodes")
        if self.nodes > 1 and self.dp > 1 and not self.dp_attention:
            raise ValueError("dp over several nodes needs dp_attention: true (SGLang)")
        if self.dp_policy is not None and self.dp == 1:
            raise ValueError(f"dp_policy: {self.dp_policy} chooses among DP ranks: set dp above 1")
        if self.stages is not None:
            layout_of(self.stages, self.replicas, self.dp, self.dp_attention)
        return self

    @property
    def layout(self) -> Layout | None:
        """Its stages, in DP ranks; None where it has none."""
        if self.stages is None:
            return None
        return layout_of(self.stages, self.replicas, self.dp, self.dp_attention)

    @property
    def ranks(self) -> int:
        """GPUs (or CPU scheduler processes) of one replica."""
        return self.tp if self.dp_attention else self.tp * self.dp
