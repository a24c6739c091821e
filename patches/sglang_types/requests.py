"""A request, in a scheduler and on its way there."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from patches.sglang_types.transfer import Sender

if TYPE_CHECKING:
    from torch import Tensor


class Sampling(Protocol):
    """SGLang's `SamplingParams`."""

    custom_params: Mapping[str, object] | None
    max_new_tokens: int
    n: int
    stop_regex_max_len: int
    stop_regex_strs: list[str]
    stop_strs: list[str]


class Prompt(Protocol):
    """What a DP policy sees of a request on its way to a scheduler."""

    @property
    def rid(self) -> str: ...

    @property
    def input_ids(self) -> array[int] | None: ...

    @property
    def sampling_params(self) -> object: ...


class Tokenized(Protocol):
    """SGLang's `TokenizedGenerateReqInput`: what the HTTP process sends to a scheduler. Fields that
    a release or another kind of request lacks are asked for by name."""

    rid: str
    sampling_params: Sampling
    input_ids: array[int]
    time_stats: object
    routed_dp_rank: int | None
    disagg_prefill_dp_rank: int | None


class Asked(Protocol):
    """SGLang's `GenerateReqInput`: a request as the HTTP process has it from a client. A batch has
    lists in these places."""

    rid: str | list[str] | None
    sampling_params: object


class Abort(Protocol):
    """SGLang's `AbortReq`: all requests, or those whose ids begin with `rid`."""

    rid: str
    abort_all: bool


class Named(Protocol):
    """Anything that has a request's id and parameters: it may carry a ticket."""

    @property
    def rid(self) -> str: ...

    @property
    def sampling_params(self) -> Sampling: ...


class FinishReason(Protocol):
    """Why a request has ended (SGLang's `BaseFinishReason`)."""

    def to_json(self) -> dict[str, object]: ...


class TimeStats(Protocol):
    """When what happened to a request, seconds."""

    wait_queue_entry_time: float

    def set_bootstrap_done_time(self) -> None: ...

    def set_completion_time(self) -> None: ...


class Grammar(Protocol):
    """SGLang's `BaseGrammarObject`: the state of one request's grammar."""

    current_token: int | None

    def accept_token(self, token: int) -> None: ...


class XGrammar(Grammar, Protocol):
    """A grammar of xgrammar's."""

    vocab_size: int

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: str) -> Tensor: ...

    def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None: ...


class GrammarManager(Protocol):
    """SGLang's manager of the grammars that are being compiled."""

    SGLANG_GRAMMAR_MAX_POLL_ITERATIONS: int
    grammar_queue: list[CompilingReq]


class CompilingReq(Protocol):
    """A request whose grammar is being compiled, for so many rounds."""

    grammar_wait_ct: int


class KvPlace(Protocol):
    """Where a request's KV lies; SGLang 0.5.17 keeps some of it in the request itself."""

    req_pool_idx: int | None
    kv_allocated_len: int


class Chunk(Protocol):
    """The part of a prompt that runs; tokens."""

    end: int


class Tokenizer(Protocol):
    """Of the model, in a scheduler."""

    @property
    def decode(self) -> Callable[[Sequence[int]], str]: ...


class Req(Protocol):
    """SGLang's `Req`: one request in a scheduler. Lengths are in tokens."""

    rid: str
    origin_input_ids: array[int]
    output_ids: array[int]
    sampling_params: Sampling
    vocab_size: int | None
    priority: int
    return_logprob: bool
    stream: bool
    grammar: Grammar | None
    tokenizer: Tokenizer
    multimodal_inputs: object
    time_stats: TimeStats
    kv: KvPlace | None
    """None before it has any."""
    extend_range: Chunk
    cached_tokens: int
    num_matched_prefix_tokens: int
    retraction_count: int
    skip_radix_cache_insert: bool
    cache_request_handle: object

    finished_reason: FinishReason | None
    finished_len: int | None
    to_finish: FinishReason | None
    """Why it ends with the step that runs; None where it goes on."""

    bootstrap_host: str | None
    bootstrap_room: int
    pending_bootstrap: bool
    pd_rebootstrap_in_progress: bool
    disagg_kv_sender: Sender
    disagg_decode_prefix_len: int
    metadata_buffer_index: int
    """-1: it has none."""
    start_send_idx: int

    toolkit_late: int
    toolkit_resumed: bool
    toolkit_heard: Sequence[int]
    toolkit_penalty_history: list[int]

    @property
    def output_ids_through_stop(self) -> array[int]: ...

    @property
    def seqlen(self) -> int: ...

    def finished(self) -> bool: ...

    def update_finish_state(self, new_accepted_len: int = 1) -> None: ...

    def set_finish_with_abort(self, error_msg: str) -> None: ...
