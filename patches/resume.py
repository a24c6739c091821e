"""Go on with a generation whose decode worker died.

The router sends the request again with the output tokens that its client already has, as
`custom_params: {"toolkit_resume": [ids]}`, to a prefill and to a decode worker:

- prefill treats them as the tail of the prompt, so KV and the next token are those of the
  undisturbed run;
- decode takes them as generated output. SGLang's own retraction recovery works the same way
  (`srt/disaggregation/decode.py:870`, `_rebootstrap_prefill_len`): with
  `pd_rebootstrap_in_progress` set, a request preallocates KV for prompt plus output and appends
  the token that arrives with the KV.

So limits on new tokens, usage and detokenisation count from the start of the original request,
and the stream that comes back begins with the text of the resumed tokens; the router drops what
the client has seen. Penalty sums are restored by `patches.resume_penalties`; random state is not,
so only greedy output is sure to be the undisturbed run's.
"""

from __future__ import annotations

from array import array
from typing import Any

from patches.base import EITHER, Hook, Patch

RESUME_KEY = "toolkit_resume"


def resumed_ids(request: Any) -> list[int]:
    """Output token ids that a request brings along; empty for an ordinary one.

    `request` is anything with `sampling_params`.
    """
    custom = getattr(request.sampling_params, "custom_params", None)
    return list(custom.get(RESUME_KEY) or ()) if isinstance(custom, dict) else []


def _extend_prompt_on_prefill(
    original: Any, scheduler: Any, recv_req: Any, *args: Any, **kwargs: Any
) -> None:
    ids = resumed_ids(recv_req)
    if ids and scheduler.disaggregation_mode.value == "prefill":
        recv_req.input_ids = array("q", [*recv_req.input_ids, *ids])
    original(scheduler, recv_req, *args, **kwargs)


def _restore_state(original: Any, scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    ids = resumed_ids(req)
    # Requests pass here again after a retraction, by when they own more than they brought.
    if ids and not getattr(req, "toolkit_resumed", False):
        req.toolkit_resumed = True
        _catch_up_grammar(req, ids)
        mode = scheduler.disaggregation_mode.value
        req.toolkit_penalty_history = ids
        if mode == "null" and scheduler.enable_overlap:
            # There the penalties run one token behind, and begin with the prompt's last
            # (`ScheduleBatch.cumulate_penalty_output_tokens`).
            req.toolkit_penalty_history = [req.origin_input_ids[-1], *ids[:-1]]
        if mode != "prefill":
            req.output_ids.extend(ids)
        if mode == "decode":
            req.pd_rebootstrap_in_progress = True
    original(scheduler, req, *args, **kwargs)


def _catch_up_grammar(req: Any, ids: list[int]) -> None:
    """Bring a constrained request's grammar to where the resumed tokens left it."""
    if req.grammar is None:
        return
    for token in ids:
        req.grammar.accept_token(token)
    # `process_prebuilt` accepts the token that arrives with the KV only while this is None.
    req.grammar.current_token = None


PATCH = Patch(
    name="resume",
    why="a stream goes on after its decode worker died, with no token lost, doubled or changed",
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.handle_generate_request",
            _extend_prompt_on_prefill,
            ("self", "recv_req"),
        ),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler._add_request_to_queue",
            _restore_state,
            ("self", "req"),
        ),
    ),
    requires=(
        "sglang.srt.disaggregation.decode.DecodePreallocQueue._rebootstrap_prefill_len",
        "sglang.srt.disaggregation.decode.DecodePreallocQueue._pre_alloc_fill_len",
    ),
)
