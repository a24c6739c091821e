"""What SGLang's DP controller sees of ranks and requests, made up."""

from array import array
from dataclasses import dataclass, field
from typing import Any

POOL = 8192


EPOCH = 1_700_000_000.0
"""Snapshots have the wall clock of their rank, the controller its own monotonic one."""


@dataclass(frozen=True)
class Snapshot:
    timestamp: float = EPOCH
    dp_rank: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int = 0
    num_used_tokens: int = 0
    num_total_tokens: int = 0
    max_total_num_tokens: int = POOL
    max_running_requests: int = 16
    received: int = 0


@dataclass
class Sampling:
    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    ignore_eos: bool = False


@dataclass
class Req:
    """The fields of SGLang's `TokenizedGenerateReqInput` that are looked at."""

    rid: str = "r"
    input_ids: Any = field(default_factory=lambda: array("q", range(10)))
    input_embeds: Any = None
    sampling_params: Any = field(default_factory=Sampling)
    routing_key: str | None = None
    session_id: str | None = None
    session_params: Any = None
    extra_key: str | None = None
    routed_dp_rank: int | None = None
    disagg_prefill_dp_rank: int | None = None
    time_stats: Any = None
