"""Rows of what routers and workers tell each other: not a client's to say."""

from __future__ import annotations

from toolkit.router.validate.field import Fate, row

_ROUTER = "the router's own: which workers and ranks work together, in which room"
_SGLANG = "SGLang's processes tell it each other"

INTERNAL = (
    row("bootstrap_host", "chat completions generate messages responses",
        f"{_ROUTER} (prefill would call any host)", Fate.DROP),
    row("bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank",
        "chat completions generate messages responses", _ROUTER, Fate.DROP),
    row("data_parallel_rank", "chat completions generate responses",
        "older name of routed_dp_rank", Fate.DROP),
    row("mm_data_mooncake bootstrap_pair_key decode_tp_size lora_id return_bytes "
        "need_wait_for_mm_inputs num_items_assigned", "generate", _SGLANG, Fate.DROP),
    row("http_worker_ipc", "generate", f"{_SGLANG}: where answers go", Fate.DROP),
    row("encoder_urls", "generate", f"{_SGLANG}: workers would fetch from there", Fate.DROP),
    row("log_metrics", "generate", "would keep a request out of the deployment's figures",
        Fate.DROP),
    row("external_trace_header", "generate", "the header traceparent does it", Fate.DROP),
    row("received_time", "generate", "of the worker's clock", Fate.DROP),
    row("kv_hints", "generate", "SGLang: never by an application client", Fate.DROP),
    row("multi_item_delimiter_indices token_indices_to_pool", "generate",
        "for scoring models through other endpoints", Fate.REFUSE),
)  # fmt: skip
