"""Give out a prompt's first token as soon as it is there.

A prefill worker samples the first token and answers its request only once the KV has reached a
decode worker, which then gives that token as its own first one. Until there is a decode worker with
room, and the KV is over there, the client has nothing. Here a prefill worker tells the token of a
request that streams (`stream: true`) at once, through SGLang's own output streamer, so that text,
parsers and ids are made as a decode worker makes them. That is before anything else is done about
the request: signature, choice, pool and transfer come behind it. The router passes it on and cuts
what decode repeats (`toolkit.router.attempt.early`).

Held back, as only a decode worker says what becomes of it: a token with which the request would end
there (end of text, stop tokens and strings, a grammar's end, an id outside the vocabulary), one
that may begin a stop string (the streamer's own rule), and those of engines that nobody has tried
this on (pipeline stages, beams). The router then hears it from decode.

Nothing else about the request changes. It must not be run again on this worker after that: it would
sample another token. In SGLang 0.5.21 only prompts that are not through yet go back into the queue
(`optimistic_release_and_requeue`); should another one come here with its token told, it ends with
an error, and the router goes on from that token elsewhere.
"""

from patches.base import EITHER, Hook, Patch
from patches.layers import Original
from patches.pd import prefill_only
from patches.pd.late_binding import newly_finished
from patches.sglang_types import Batch, Req, Scheduler
from toolkit.limited_logs import limited_logger

log = limited_logger("toolkit.prefill")

MIXIN = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
REQ = "sglang.srt.managers.schedule_batch.Req"
_TOLD = "_toolkit_first_token_told"


def _tell_first_tokens(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: object
) -> None:
    finished = newly_finished(original, scheduler, batch, result)
    told = [req for req in finished if req.stream and not held_back(scheduler, req)]
    for req in told:
        setattr(req, _TOLD, True)
    if told:
        scheduler.output_streamer.stream_output(told, any(req.return_logprob for req in told))


def held_back(scheduler: Scheduler, req: Req) -> str:
    """Why the first token of a finished prefill is for decode to tell; empty when it is not."""
    from sglang.srt.runtime_context import get_parallel

    token, vocabulary = req.output_ids[-1], req.vocab_size
    if len(req.output_ids) != 1:
        return "it is not the first one"
    if prefill_only.alone(req):
        return "it is the only one"
    if req.to_finish is not None or req.finished():
        return "the request is ending"
    if token < 0 or (vocabulary is not None and token >= vocabulary):
        return "it is outside the vocabulary"
    if get_parallel().pp_size > 1:
        return "not tried with pipeline stages"
    if getattr(req, "beam_group", None) is not None:  # no beams in 0.5.17
        return "a beam's token may be dropped"
    return "the request ends with it" if _ends(req) else ""


def _ends(req: Req) -> bool:
    """Whether SGLang would end the request at this token, did it look: on prefill it does not. The
    most new tokens, 1 on prefill, say nothing here: that end takes nothing back of the token."""
    params = req.sampling_params
    most = params.max_new_tokens
    params.max_new_tokens = len(req.output_ids) + 1
    try:
        req.update_finish_state()
        return bool(req.finished())
    finally:
        params.max_new_tokens = most
        req.finished_reason = req.finished_len = None


def _never_again(original: Original[None], scheduler: Scheduler, req: Req) -> None:
    if not getattr(req, _TOLD, False):
        original(scheduler, req)
        return
    log.error("%s was to be prefilled again after its first token was told", req.rid)
    scheduler.handle_bootstrap_failure(req)


PATCH = Patch(
    name="first_token",
    why="the first token is there long before a decode worker can repeat it",
    gain="TTFT of streams",
    needs=("late_binding", "output_ids", "resume"),
    processes=EITHER,
    hooks=(
        Hook(
            f"{MIXIN}.process_batch_result_disagg_prefill",
            _tell_first_tokens,
            ("self", "batch", "result"),
        ),
        Hook(f"{MIXIN}.optimistic_release_and_requeue", _never_again, ("self", "req")),
    ),
    requires=(
        f"{MIXIN}.handle_bootstrap_failure",
        f"{REQ}.update_finish_state",
        f"{REQ}.check_match_stop_str_prefix",
        "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
        ".stream_output",
        "sglang.srt.runtime_context.get_parallel",
    ),
)
