"""Go on with a generation whose decode worker died.

The router sends the request again with the output tokens that its client already has, in a signed
ticket (`toolkit.contract.ticket`), to a prefill and to a decode worker:

- prefill treats them as the tail of the prompt, so KV and the next token are those of the
  undisturbed run;
- decode takes them as generated output. SGLang's own retraction recovery works the same way
  (`srt/disaggregation/decode.py:870`, `_rebootstrap_prefill_len`): with
  `pd_rebootstrap_in_progress` set, a request preallocates KV for prompt plus output and appends
  the token that arrives with the KV.

So limits on new tokens, usage and detokenisation count from the start of the original request,
and the stream that comes back begins with the text of the resumed tokens; the router drops what
the client has seen. Penalty sums are restored by `patches.pd.resume_penalties`; random state is
not, so only greedy output is sure to be the undisturbed run's.

A ticket that the router did not sign for this request, or with tokens that this model or this
request's grammar cannot have produced, is that request's error: 400 (`patches.http.request_guard`).
"""

from array import array

from patches.base import EITHER, Hook, Patch
from patches.layers import Original
from patches.sglang_types import Req, Scheduler, Tokenized
from patches.tickets import ticket_of
from toolkit.contract.ticket import TicketError


def _check_ids(scheduler: Scheduler, recv_req: Tokenized, ids: tuple[int, ...]) -> None:
    """Raises TicketError for what this model could not have generated for this prompt."""
    vocabulary = scheduler.model_config.vocab_size
    if max(ids) >= vocabulary:
        raise TicketError(f"a token to resume is outside the vocabulary of {vocabulary}")
    length = len(recv_req.input_ids or ()) + len(ids)
    if length >= scheduler.max_req_input_len:
        raise TicketError(
            f"prompt and tokens to resume are {length}, more than {scheduler.max_req_input_len - 1}"
        )


def _extend_prompt_on_prefill(
    original: Original[None],
    scheduler: Scheduler,
    recv_req: Tokenized,
    *args: object,
    **kwargs: object,
) -> None:
    ids = ticket_of(recv_req).resume
    if ids:
        _check_ids(scheduler, recv_req, ids)
        if scheduler.disaggregation_mode.value == "prefill":
            recv_req.input_ids = array("q", [*recv_req.input_ids, *ids])
    original(scheduler, recv_req, *args, **kwargs)


def _restore_state(
    original: Original[None], scheduler: Scheduler, req: Req, *args: object, **kwargs: object
) -> None:
    # Requests pass here again after a retraction, by when they own more than they brought; and
    # those that were refused, which are only to be answered.
    if req.to_finish is None and not getattr(req, "toolkit_resumed", False):
        ticket = ticket_of(req)
        ids, late = ticket.resume, ticket.late
        if ids and catch_up_grammar(req, ids[: len(ids) - late]):
            own(scheduler, req, ids)
            req.toolkit_late = late
    original(scheduler, req, *args, **kwargs)


def own(scheduler: Scheduler, req: Req, ids: tuple[int, ...]) -> None:
    """Give a request the tokens that it brought, as its output so far."""
    req.toolkit_resumed = True
    mode = scheduler.disaggregation_mode.value
    remember_for_penalties(scheduler, req, ids)
    if mode != "prefill":
        req.output_ids.extend(ids)
    if mode == "decode":
        req.pd_rebootstrap_in_progress = True


def remember_for_penalties(scheduler: Scheduler, req: Req, ids: tuple[int, ...]) -> None:
    """What the penalties of the undisturbed run had counted when its next token was sampled
    (`patches.pd.resume_penalties`)."""
    req.toolkit_penalty_history = list(ids)
    if scheduler.enable_overlap:
        mode = scheduler.disaggregation_mode.value
        first = req.origin_input_ids[-1] if mode == "null" else ids[0]
        req.toolkit_penalty_history = [first, *ids[:-1]]


def catch_up_grammar(req: Req, ids: tuple[int, ...]) -> bool:
    """Bring a constrained request's grammar to where the resumed tokens left it.

    False, and the request is to end with an error, when the grammar does not allow them.
    """
    if req.grammar is None:
        return True
    try:
        for token in ids:
            req.grammar.accept_token(token)
    except Exception:  # each backend has its own, xgrammar a bare RuntimeError
        req.set_finish_with_abort("the tokens to resume do not follow the request's grammar")
        return False
    # `process_prebuilt` accepts the token that arrives with the KV only while this is None.
    req.grammar.current_token = None
    return True


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
