"""What is wrong with one request is that request's error: schedulers do not see it, and survive it.

SGLang's tokenizer process takes over most fields as they come. Some end the scheduler that meets
them, and with it the requests of everybody (a `logit_bias` that is a list, a `top_k` beyond int32,
more log probabilities than there are tokens, ...); others raise in the tokenizer process, which
answers 500 as if it were at fault. Three checks, one behind the other:

- the HTTP process answers 400 where a request raises before it was sent to a scheduler
  (`patches.http.request_answers`);
- there and again in every scheduler `patches.http.request_values` looks at each value;
- what a scheduler still raises while it takes a request in becomes an abort of that request.

The checks depend on the request and the model alone and each rank of a server gets the same
requests, so the ranks refuse the same ones. What raises later, in a batch, is not caught: the batch
is of many, and its ranks would go different ways. That is what the second check is for.
"""

import re
import time

from patches.base import Hook, Patch, Process, Variant
from patches.flags import WRITTEN
from patches.http.request_values import REQUEST_FIELDS, SAMPLING_FIELDS, RequestLimits, wrong
from patches.layers import Original
from patches.sglang_types import (
    GrammarManager,
    ModelConfig,
    Named,
    Scheduler,
    Tokenized,
    TokenScores,
    XGrammar,
)
from toolkit.contract.ticket import TicketError
from toolkit.limited_logs import limited_logger

log = limited_logger(__name__)

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_REQUEST = "sglang.srt.managers.io_struct.TokenizedGenerateReqInput"
_PROCESSOR = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
)
_SAMPLING = "sglang.srt.sampling.sampling_params.SamplingParams"

MISTAKES = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    AssertionError,
    NotImplementedError,
    re.error,
)
"""What Python raises for a value that does not fit. Not here: RuntimeError, which torch raises
for a broken device too, MemoryError and OSError."""

GRAMMAR_S = 8.0
"""A grammar that has not compiled by then is its request's error. Ordinary ones take milliseconds,
large ones a second."""
_COMPILES_SINCE = "toolkit_grammar_since"


class RequestError(ValueError):
    """A client's mistake: SGLang answers 400 for every ValueError of its tokenizer process."""


def as_mistake(error: Exception) -> ValueError:
    """What a client is told of an exception that its values raised."""
    if isinstance(error, ValueError):
        return error
    kind = type(error).__name__
    return RequestError(f"The request has a value of a wrong type or range ({kind}: {error}).")


def limits_of(config: ModelConfig) -> RequestLimits:
    from sglang.srt.runtime_context import get_disagg, get_exec

    mode, transfer = get_disagg().disaggregation_mode, get_disagg().disaggregation_transfer_backend
    return RequestLimits(
        vocabulary=config.vocab_size,
        context=config.context_len,
        hidden=config.hidden_size,
        disaggregated=mode != "null",
        calls=mode == "decode" and transfer != "fake",
        processors=bool(get_exec().features.enable_custom_logit_processor),
        seeds=bool(get_exec().deterministic.enable_deterministic_inference),
    )


def abort(scheduler: Scheduler, request: Named, message: str, status: int = 400) -> None:
    """Answer a request that the scheduler has not taken in. On ranks without a socket a no-op."""
    from sglang.srt.managers.io_struct import AbortReq

    reason = {"type": "abort", "message": message, "status_code": status}
    scheduler.ipc_channels.send_to_tokenizer.send_output(
        AbortReq(rid=request.rid, finished_reason=reason), request
    )


def _take_in(
    original: Original[None],
    scheduler: Scheduler,
    recv_req: Tokenized,
    *args: object,
    **kwargs: object,
) -> None:
    if type(recv_req).__name__ == "TokenizedGenerateReqInput":
        try:
            reason = wrong(recv_req, limits_of(scheduler.model_config))
        except MISTAKES as error:
            reason = str(as_mistake(error))
        if reason is not None:
            abort(scheduler, recv_req, reason)
            return
    try:
        original(scheduler, recv_req, *args, **kwargs)
    except MISTAKES as error:
        _log_frame("a request could not be taken in", error)
        if isinstance(error, (RequestError, TicketError)):
            abort(scheduler, recv_req, str(error))
        else:
            abort(scheduler, recv_req, "The worker could not take this request in.", 500)


def _survive(
    original: Original[object],
    scheduler: Scheduler,
    recv_req: object,
    *args: object,
    **kwargs: object,
) -> object:
    try:
        return original(scheduler, recv_req, *args, **kwargs)
    except MISTAKES as error:
        _log_frame(f"{type(recv_req).__name__} was left out", error)
        return None


def _give_up_grammars(original: Original[object], manager: GrammarManager) -> object:
    """Count a grammar that compiles for too long as failed in this round. SGLang counts rounds,
    10,000 of them, each as long as a step; ranks agree, as one rank's failure is everybody's."""
    now = time.monotonic()
    for req in manager.grammar_queue:
        since = getattr(req, _COMPILES_SINCE, None)
        if since is None:
            setattr(req, _COMPILES_SINCE, now)
        elif now - since > GRAMMAR_S:
            req.grammar_wait_ct = manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS
    return original(manager)


def _even_lists(
    original: Original[None], processor: object, *, batch: object, logits_output: TokenScores
) -> None:
    """SGLang 0.5.20 has a bare list for whoever asked for no ids' log probabilities in a batch in
    which somebody did, and calls a tensor's method on it."""
    import torch

    values = logits_output.next_token_token_ids_logprobs_val
    if values:
        logits_output.next_token_token_ids_logprobs_val = [
            torch.tensor(each) if isinstance(each, list) else each for each in values
        ]
    original(processor, batch=batch, logits_output=logits_output)


def _refuse_dead_grammars(
    original: Original[XGrammar], backend: object, key: object, *args: object
) -> object:
    """A grammar that allows no first token (`root ::= root`) counts as one that does not compile;
    SGLang samples any token, which the grammar then refuses, and answers 500."""
    from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject

    grammar = original(backend, key, *args)
    if type(grammar).__name__ == "XGrammarGrammar" and allows_nothing(grammar):
        return InvalidGrammarObject("it allows no text")
    return grammar


def allows_nothing(grammar: XGrammar) -> bool:
    """Whether no token may come next."""
    mask = grammar.allocate_vocab_mask(grammar.vocab_size, 1, "cpu")
    grammar.fill_vocab_mask(mask, 0)
    return not bool(mask.any())


def _log_frame(what: str, error: Exception) -> None:
    """Say where it was raised; not the message, which may quote a prompt."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace is not None else "?"
    log.error("%s: %s in %s", what, type(error).__name__, where)


PATCH = Patch(
    name="request_guard",
    why="a value that a scheduler cannot use is one request's error, not the end of the scheduler",
    after={
        "resume": "it answers what that one raises about a ticket",
        "preempt_admission": "it survives what that one raises",
        "move_held": "it survives what that one raises",
    },
    processes=frozenset({Process.SCHEDULER}),
    hooks=(
        Hook(f"{_SCHEDULER}.handle_generate_request", _take_in, ("self", "recv_req")),
        Hook(f"{_SCHEDULER}.handle_embedding_request", _take_in, ("self", "recv_req")),
        Hook(f"{_SCHEDULER}.abort_request", _survive, ("self", "recv_req")),
        Hook(f"{_SCHEDULER}.close_session", _survive, ("self", "recv_req")),
        Hook(f"{_PROCESSOR}.move_logprobs_to_cpu", _even_lists, ("self", "batch", "logits_output")),
        Hook(
            "sglang.srt.constrained.grammar_manager.GrammarManager.get_ready_grammar_requests",
            _give_up_grammars,
            ("self",),
        ),
        Hook(
            "sglang.srt.constrained.base_grammar_backend.BaseGrammarBackend._init_value_dispatch",
            _refuse_dead_grammars,
            ("self", "key", "require_reasoning"),
        ),
    ),
    requires=(
        "sglang.srt.managers.io_struct.AbortReq",
        "sglang.srt.managers.io_struct.TokenizedGenerateReqInput",
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
        "sglang.srt.constrained.base_grammar_backend.InvalidGrammarObject",
        "sglang.srt.constrained.xgrammar_backend.XGrammarGrammar.fill_vocab_mask",
        "sglang.srt.constrained.xgrammar_backend.XGrammarGrammar.allocate_vocab_mask",
        "sglang.srt.runtime_context.get_disagg",
        "sglang.srt.runtime_context.get_exec",
        "sglang.srt.sampling.custom_logit_processor.CustomLogitProcessor.from_str",
        *(f"{_REQUEST}.{name}" for name in REQUEST_FIELDS),
        *(f"{_SAMPLING}.{name}" for name in SAMPLING_FIELDS),
    ),
    variants=(
        Variant("from 0.5.20", requires=(f"{_SAMPLING}.beam_width",)),
        Variant("0.5.17, without beams", requires=WRITTEN),
    ),
)
