"""What patches keep in the process that serves HTTP: it hangs on SGLang's tokenizer manager.

That process has no scheduler. Its tokenizer manager hears what the schedulers say, and every route
and signal handler of SGLang's finds it.
"""

from patches.base import resolve
from patches.sglang_types import ServingState, TokenizerManager
from patches.state_by_class import StateByClass

ATTRIBUTE = "toolkit_state"
"""Of SGLang's `TokenizerManager`."""


def of(manager: object) -> StateByClass:
    """The state of the server that this tokenizer manager belongs to."""
    found: StateByClass | None = getattr(manager, ATTRIBUTE, None)
    if found is None:
        found = StateByClass()
        setattr(manager, ATTRIBUTE, found)
    return found


def serving_manager() -> TokenizerManager:
    """SGLang's tokenizer manager, once the server has one."""
    state: ServingState = resolve("sglang.srt.entrypoints.http_server.get_global_state")()
    return state.tokenizer_manager
