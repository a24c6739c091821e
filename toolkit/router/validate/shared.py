"""Fields that several endpoints know."""

from __future__ import annotations

from typing import Any

from toolkit.router.validate import reasons, rules
from toolkit.router.validate.field import Fate, Field
from toolkit.router.validate.handover import (
    ALIKE,
    INSIDE_MODEL,
    MARKED,
    NO_TEXT,
    PROCESSOR,
    Handover,
)
from toolkit.router.validate.limits import MAX_TOKENS

DROP, REFUSE = Fate.DROP, Fate.REFUSE
_ROUTER = "the router's own: which workers and ranks work together, in which room"

MEETING: tuple[Field, ...] = (
    Field("bootstrap_host", Any, _ROUTER + " (prefill would call any host)", DROP),
    Field("bootstrap_port", Any, _ROUTER, DROP),
    Field("bootstrap_room", Any, _ROUTER, DROP),
    Field("routed_dp_rank", Any, _ROUTER, DROP),
    Field("disagg_prefill_dp_rank", Any, _ROUTER, DROP),
)
"""`PDRoutingFields` of SGLang."""
INSIDE: tuple[Field, ...] = (
    *MEETING,
    Field("data_parallel_rank", Any, "older name of routed_dp_rank", DROP),
    Field("background", Any, "SGLang would not look whether the client is still there", DROP),
    Field("priority", int | None, "one client could always go before all others", DROP,
          allow="priority", rule=rules.integer(-rules.INT64, rules.INT64 - 1), handover=ALIKE),
    Field("custom_labels", dict[str, str] | None,
          "each value is another series of metrics, kept for ever", DROP, allow="labels",
          handover=ALIKE),
    Field("session_params", dict[str, Any] | None,
          "a session lives in one worker, requests go to any", REFUSE),
    Field("return_routed_experts", bool, "SGLang's own are wrong under prefill and decode apart",
          REFUSE, allow="routed_experts", default=False, handover=INSIDE_MODEL),
    Field("routed_experts_start_len", int, "it acts on return_routed_experts only", DROP,
          allow="routed_experts", rule=rules.integer(0, MAX_TOKENS),
          default=0, handover=INSIDE_MODEL),
)  # fmt: skip

CACHE: tuple[Field, ...] = (
    Field("session_id", str | None, reasons.CONVERSATION, rule=rules.NAME,
          handover=ALIKE),
    Field("extra_key", list[str] | str | None, reasons.APART,
          rule=rules.NAMES, handover=ALIKE),
    Field("cache_salt", list[str] | str | None, reasons.APART,
          rule=rules.NAMES, handover=ALIKE),
)  # fmt: skip


WATERMARK = Field("watermark", dict[str, Any] | None, reasons.MARK,
                  handover=MARKED)  # fmt: skip
PROCESSING = Field("mm_processor_kwargs", dict[Any, Any] | None, reasons.MEDIA, REFUSE,
                   allow="media", handover=NO_TEXT)  # fmt: skip


def logit_processor(kind: Any) -> Field:
    """Its type differs between the endpoints."""
    why = "pickled code that schedulers run"
    return Field(
        "custom_logit_processor", kind, why, REFUSE, allow="logit_processor", handover=PROCESSOR
    )


def off(name: str, kind: Any, why: str, allow: str, handover: Handover) -> Field:
    """A switch that a deployment must allow, false by default."""
    return Field(name, kind, why, REFUSE, allow=allow, default=False, handover=handover)


__all__ = [
    "CACHE",
    "DROP",
    "INSIDE",
    "MEETING",
    "PROCESSING",
    "REFUSE",
    "WATERMARK",
    "logit_processor",
    "off",
]
