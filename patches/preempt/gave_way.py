"""Say that best-effort work stood still, for whoever watches the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from patches.dp import layout
from toolkit.contract.events import GaveWay

if TYPE_CHECKING:
    from patches.sglang_types import Req, Scheduler

REQUIRES = "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output"


def tell(
    scheduler: Scheduler,
    one: Req,
    kind: Literal["prompt", "answer"],
    requests: int = 0,
    seconds: float = 0.0,
) -> None:
    """Of a DP rank's processes the first one's word goes out. `one` of the requests: its HTTP
    process, of several, gets the event."""
    event = GaveWay(kind, requests, seconds, layout.rank(scheduler))
    scheduler.ipc_channels.send_to_tokenizer.send_output(event, one)
