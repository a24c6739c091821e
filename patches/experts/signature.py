"""The signature cache: which experts every KV slot's token was routed to, kept beside the KV.

A prefill worker holds, for the layers of the profile's mask only, one byte per chosen expert in a
tensor that is indexed by KV slot on the model's device. A forward writes
the rows of the tokens that it ran; when a prompt's last chunk has run, the rows of *all* its slots,
those reused from the radix cache included, are counted into `[layers, experts]`. So a signature
is that of the whole prompt whatever was cached (ELDR, "Prefix Cache Coherence"; theirs is a count
per block of 16 tokens, SGLang's radix cache shares single tokens).

Both run on the forward's own stream, after the model, from the ids that SGLang's capturer left on
the device; the counts travel to the host with the copy that the overlap scheduler makes anyway and
are read when it waits for that. No synchronisation is added, and CUDA graphs are not touched.

A slot's row is valid when a forward of this worker wrote every kept layer of it. What hierarchical
cache loads back from host memory is marked unknown, as are layers that the capturer does not see
(top-k backends that bypass it): such signatures are sent as incomplete and the router goes by load.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch, PatchError, Variant, refuse
from patches.experts.loaded_kv import on_load
from patches.experts.of_model import expert_count
from patches.experts.signature_cache import SignatureCache
from patches.experts.signature_state import COUNT_AT, Counted, SignatureState
from patches.flags import ASKED, WRITTEN
from patches.kv_row import kv_row
from patches.layers import Original
from patches.scheduler_state import current, of
from patches.sglang_types import Captured, Capturer, ForwardBatch, ModelRunner, Result, ServerArgs
from patches.steps.step_log import CAPTURER
from toolkit.contract.variables import LAYERS_VARIABLE
from toolkit.limited_logs import limited_logger

if TYPE_CHECKING:
    from torch import Tensor

    from patches.sglang_types import Batch, Scheduler

log = limited_logger("toolkit.signature")

LARGE_SHARE = 0.01
"""Of the KV pool. The cache is made after SGLang has sized the pool by the memory that was free."""
_COUNTED = "_toolkit_counted"


def wanted_layers() -> list[int]:
    """Model layers whose experts make the signature, ascending; none where nobody wants any.

    PatchError: the variable does not hold numbers.
    """
    text = os.environ.get(LAYERS_VARIABLE, "")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise PatchError(
            f"{LAYERS_VARIABLE}={text} must be layer numbers with commas between, such as 0,3,5"
        )
    return sorted({int(part) for part in parts})


def check_worker(server_args: ServerArgs) -> None:
    """Refuse a worker that cannot keep the experts that are asked of it.

    In the main process, before it has started anything: when a scheduler ends, all that SGLang's
    main process says is that it died, with a status after which the launcher would try again.
    """
    try:
        layers = wanted_layers()
    except PatchError as error:
        refuse(str(error))
    if server_args.disaggregation_mode != "prefill":
        layers = []
    if not server_args.enable_return_routed_experts:
        if layers:
            refuse(
                f"{LAYERS_VARIABLE} is set but the worker runs without "
                "--enable-return-routed-experts: add the flag (or `router.profile` in the "
                "deployment file, which sets both)"
            )
        return
    from patches.check_args import resolved
    from patches.flags import model_config, resolve_flags
    from toolkit.contract.capturing import worker_problems

    resolve_flags(server_args)
    count = model_config(server_args).hf_text_config.num_hidden_layers
    if layers and layers[-1] >= count:
        refuse(
            f"{LAYERS_VARIABLE} names layer {layers[-1]}, the model's are 0 to {count - 1}: "
            "name layers that it has (`router.profile` in the deployment file does)"
        )
    for problem in worker_problems(resolved(server_args)):
        said = f"{problem.what} (--{problem.where}: {problem.repair})"
        if problem.fatal:
            refuse(said)
        log.warning("toolkit: %s", said)


def peek(result: Result) -> Counted | None:
    """What the forward of this result counted; before SGLang processes the result."""
    output = result.routed_experts_output
    if output is not None:
        return getattr(output, _COUNTED, None)
    return current().get(SignatureState).inline


def take(result: Result) -> Counted | None:
    """The same, once."""
    counted = peek(result)
    current().get(SignatureState).inline = None
    return counted


def _create_cache(original: Original[None], runner: ModelRunner) -> None:
    original(runner)
    layers = wanted_layers()
    mode = runner.server_args.disaggregation_mode
    if runner.is_draft_worker or not layers or mode != "prefill" or not _speaks():
        return
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    capturer = get_global_experts_capturer()
    assert capturer is not None, "check_worker has seen the flag"
    cache = SignatureCache.create(
        capturer.host_cache.num_tokens,
        layers,
        _experts(runner.model_config.hf_text_config),
        capturer.topk_size,
        capturer.device_cache.buffer.device,
    )
    current().get(SignatureState).cache = cache
    log_size(cache, getattr(runner.token_to_kv_pool, "mem_usage", 0.0))


def log_size(cache: SignatureCache, pool_gib: float) -> None:
    """Say what the cache takes of this rank's KV pool, a warning above 1 %."""
    if not pool_gib:  # a pool that does not say
        return
    share = cache.rows.nbytes / (pool_gib * 2**30)
    log.log(
        logging.WARNING if share > LARGE_SHARE else logging.INFO,
        "Signature cache: %.1f MiB, %.2f %% of this rank's KV pool, beside what "
        "--mem-fraction-static allows.",
        cache.rows.nbytes / 2**20,
        100 * share,
    )


def _speaks() -> bool:
    """Only the rank that talks to the HTTP process keeps one (`SchedulerIpcChannels.create`)."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return bool(parallel.pp_rank == 0 and parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0)


def _experts(config: object) -> int:
    return expert_count(config)


def _note_batch(
    original: Original[object],
    scheduler: Scheduler,
    batch: Batch,
    *args: object,
    **kwargs: object,
) -> object:
    state = of(scheduler).get(SignatureState)
    state.batch = batch
    try:
        return original(scheduler, batch, *args, **kwargs)
    finally:
        state.batch = None


def _record_forward(
    original: Original[Captured],
    capturer: Capturer,
    forward_batch: ForwardBatch,
    can_run_graph: bool,
    cuda_graph_batch: int | None,
    no_copy_to_cpu: bool = False,
) -> Captured | None:
    state = current().get(SignatureState)
    cache = state.cache
    if cache is None or capturer.host_cache.name != CAPTURER:
        return original(capturer, forward_batch, can_run_graph, cuda_graph_batch, no_copy_to_cpu)
    # The device's own ids, also where SGLang would copy them to the host right here.
    output = original(capturer, forward_batch, can_run_graph, cuda_graph_batch, True)
    cache.record(output.out_cache_loc, output.topk)
    counted = count_finished(state, forward_batch)
    if no_copy_to_cpu:
        setattr(output, _COUNTED, counted)
        return output
    output.map_device_tensors(lambda tensor: tensor.cpu())
    output.finalize()
    if counted is not None:
        counted.counts = counted.counts.cpu()
    state.inline = counted
    return None


def count_finished(state: SignatureState, forward_batch: ForwardBatch) -> Counted | None:
    """Counts of the requests whose prompt has been run to its end by this forward, or so far that
    their decode worker is asked for (`patches.pd.early_choice`)."""
    cache, batch = state.cache, state.batch
    if cache is None or batch is None or not forward_batch.forward_mode.is_extend():
        return None
    ends = zip(forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu, strict=True)
    # `strict` not with `reqs`: an idle or padded batch has rows without a request.
    rows = [
        (req, prefix + run)
        for req, (prefix, run) in zip(batch.reqs, ends, strict=False)
        if prefix + run >= len(req.origin_input_ids) or prefix + run == getattr(req, COUNT_AT, 0)
    ]
    if not rows:
        return None
    table = batch.req_to_token_pool.req_to_token
    counts = cache.count_each([table[kv_row(req), :length] for req, length in rows])
    rids, lengths = [req.rid for req, _ in rows], [length for _, length in rows]
    return Counted(rids, lengths, counts)


def _copy_counts(
    original: Original[None], output: Captured, fn: Callable[[Tensor], Tensor]
) -> None:
    original(output, fn)
    counted = getattr(output, _COUNTED, None)
    if counted is not None:
        counted.counts = fn(counted.counts)


def _forget_loaded(slots: Tensor) -> None:
    cache = current().get(SignatureState).cache
    if cache is not None:
        cache.forget(slots)


_CAPTURE = "sglang.srt.state_capturer.base"

PATCH = Patch(
    name="signature",
    why="the router sends a request where its experts are loaded, so prefill must say which",
    independent_of={
        "expert_layers": "layers are numbered before the capturer is made, this looks behind",
        "lockstep": "each notes something of its own",
        "step_log_cpu": "each notes something of its own",
        "preempt_boundary": "a batch that stands still has this note put back",
    },
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.model_executor.model_runner.ModelRunner.init_routed_experts_capturer",
            _create_cache,
            ("self",),
        ),
        Hook("sglang.srt.managers.scheduler.Scheduler.run_batch", _note_batch, ("self", "batch")),
        Hook(
            f"{_CAPTURE}.BaseTopkCapturer.on_forward_end",
            _record_forward,
            ("self", "forward_batch", "can_run_graph", "cuda_graph_batch", "no_copy_to_cpu"),
        ),
        Hook(f"{_CAPTURE}.TopkCaptureOutput.map_device_tensors", _copy_counts, ("self", "fn")),
        *on_load(_forget_loaded),
    ),
    requires=(
        "sglang.srt.state_capturer.routed_experts.get_global_experts_capturer",
        "sglang.srt.runtime_context.get_parallel",
        "sglang.srt.managers.scheduler_components.ipc_channels.SchedulerIpcChannels.create",
    ),
    variants=(Variant("from 0.5.20", requires=ASKED), Variant("0.5.17", requires=WRITTEN)),
)
