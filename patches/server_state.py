"""What patches keep in the process that serves HTTP: it hangs on SGLang's tokenizer manager.

That process has no scheduler. Its tokenizer manager hears what the schedulers say, and every route
and signal handler of SGLang's finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patches.sglang_types import ServingState, TokenizerManager

if TYPE_CHECKING:
    from patches.relocate.order import Desk
    from patches.streams.event_hub import EventHub
    from patches.streams.expert_stream import ExpertHub

ATTRIBUTE = "toolkit_state"
"""Of SGLang's `TokenizerManager`."""


@dataclass
class ServerState:
    """Each is made by the patch that it belongs to, when it is first asked for."""

    events: EventHub | None = None
    """`event_stream`; `move_order`, `expert_stream` and `relocation_order` publish there too."""
    experts: ExpertHub | None = None
    """`expert_stream`."""
    relocations: Desk | None = None
    """`relocation_order`."""


def of(manager: object) -> ServerState:
    """The state of the server that this tokenizer manager belongs to."""
    found: ServerState | None = getattr(manager, ATTRIBUTE, None)
    if found is None:
        found = ServerState()
        setattr(manager, ATTRIBUTE, found)
    return found


def serving_manager() -> TokenizerManager:
    """SGLang's tokenizer manager, once the server has one."""
    from patches.base import resolve

    state: ServingState = resolve("sglang.srt.entrypoints.http_server.get_global_state")()
    return state.tokenizer_manager
