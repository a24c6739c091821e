"""Ask SGLang itself whether it would take a worker's flags, without starting anything.

`python -m patches.check_args` reads one JSON object a line, `{"name", "argv", "device"}`, all
for one device, and answers each with `{"name", "ok", "error", "resolved"}`. Flags for `cuda` are
checked on a machine without a GPU too, as long as `--model-path` is a folder with a `config.json`;
what SGLang derives from the GPU itself (memory fractions, attention backends) is not judged then.
"""

import contextlib
import gc
import io
import json
import os
import sys

from patches.sglang_types import ServerArgs

RESOLVED_FIELDS = (
    "page_size", "dtype", "kv_cache_dtype", "tp_size", "ep_size", "context_length",
    "max_total_tokens", "max_running_requests", "chunked_prefill_size", "served_model_name",
    "disaggregation_mode", "disaggregation_transfer_backend", "attention_backend",
    "optimistic_prefill_attempts",
    "enable_return_routed_experts", "enable_two_batch_overlap", "moe_a2a_backend",
    "deepep_mode",
    "moe_runner_backend", "disable_radix_cache", "speculative_algorithm",
    "speculative_eagle_topk", "speculative_num_steps", "speculative_num_draft_tokens",
    "speculative_draft_model_path",
    "enable_decoder_swa_bounded_replay", "ep_num_redundant_experts", "enable_eplb",
    "init_expert_location", "watchdog_timeout",
    "enable_lmcache", "enable_flexkv", "enable_unified_cache_external_linker",
    "radix_cache_backend", "enable_pd_role_switch", "elastic_ep_backend",
    "ep_dispatch_algorithm", "grpc_port", "tokenizer_worker_num",
    "pp_size", "attn_cp_size", "enable_prefill_cp", "dcp_size", "enable_hisparse",
    "disaggregation_decode_enable_offload_kvcache", "disaggregation_decode_enable_radix_cache",
    "disaggregation_enable_kv_checksum",
)  # fmt: skip


def check(argv: list[str]) -> dict[str, object]:
    """What SGLang says of one command line: `ok`, its `error` in SGLang's words, and the values
    that it resolved."""
    from sglang.srt.server_args import prepare_server_args

    from patches.dp import layout, method
    from patches.flags import resolve_flags, understood

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            flags, policy = method.take_method(
                argv
            )  # the profile is in the environment of the worker
            server_args = prepare_server_args(understood(flags))
            resolve_flags(server_args)
            server_args.check_server_args()
            if policy is not None:
                method.check_server(server_args, policy, layout.of_server(server_args))
            found = resolved(server_args)
    except SystemExit:
        # argparse prints the usage, then one line `prog: error: ...`.
        lines = said.getvalue().strip().splitlines() or ["SGLang refused the flags"]
        return {"ok": False, "error": lines[-1].split("error: ", 1)[-1], "resolved": {}}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}", "resolved": {}}
    return {"ok": True, "error": None, "resolved": found}


def resolved(server_args: ServerArgs) -> dict[str, object]:
    """What SGLang made of the flags, plain: RESOLVED_FIELDS; `dp_size` and `enable_dp_attention`,
    see `patches.dp.layout`; `prefill_cuda_graph`, the backend or "disabled"; `only_sliding_window`,
    whether every layer's KV is in the sliding-window pool. `server_args` must have been resolved.
    """
    from patches.dp import layout
    from patches.flags import model_config, resolved_view

    view = resolved_view(server_args)
    model = model_config(server_args)
    graphs = view.cuda_graph_config
    return {name: _plain(getattr(view, name, None)) for name in RESOLVED_FIELDS} | {
        "dp_size": layout.ranks(view),
        "enable_dp_attention": layout.together(view),
        "prefill_cuda_graph": graphs and graphs.prefill.backend,
        "only_sliding_window": model.is_hybrid_swa and model.full_attention_layer_ids == [],
    }


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def check_away(argv: list[str]) -> dict[str, object]:
    """The same of flags for CUDA on a machine without it. What SGLang refuses for that alone (the
    state cache of Qwen3-Next asserts that there is CUDA) is asked again as if there were."""
    answer = check(argv)
    if answer["ok"]:
        return answer
    from sglang.srt import runtime_context

    override = getattr(runtime_context, "override_platform", None)
    if override is None:
        return answer
    with override(is_cuda=True):
        again = check(argv)
    return again if again["ok"] else answer


def _without_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def main() -> None:
    """Answer every line of standard input; SGLang's own prints go to standard error."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    gc.disable()  # it imports SGLang, answers and is gone
    from patches import stubs

    if _without_gpu():
        stubs.put_on_path()
    questions = [json.loads(line) for line in sys.stdin if line.strip()]
    devices = {question["device"] for question in questions}
    if len(devices) > 1:
        # SGLang decides once per process, at import, whether it is on CPU.
        sys.exit(f"ask about one device a call, not {', '.join(sorted(devices))}")
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1" if devices == {"cpu"} else "0"
    if devices == {"cpu"}:
        from patches.flags import allow_deterministic

        allow_deterministic()
    ask = check_away if devices == {"cuda"} and _without_gpu() else check
    for question in questions:
        print(json.dumps({"name": question["name"], **ask(question["argv"])}), file=answers)
        answers.flush()


if __name__ == "__main__":
    main()
