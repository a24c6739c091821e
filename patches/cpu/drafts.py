"""CPU shim: speculative decoding with the torch attention backend.

SGLang 0.5.21 runs EAGLE (NEXTN, MTP) and NGRAM on a CPU with kernels of its AMX backend. The torch
backend lacks:

- verification (`ForwardMode.TARGET_VERIFY`): every request brings `draft_token_num` tokens more
  than `seq_lens` says. In a tree a token sees its ancestors among them, in a chain those before it;
- a decode backend for several draft steps (`DraftBackendFactory.create_decode_backend`): step s has
  the KV of s + 1 drafted tokens;
- one for the draft's own prefill (`create_draft_extend_backend`): the ordinary one does.

And it turns the overlap scheduler off for drafts on a CPU, for the lack of one Triton kernel
(`gather_spec_extras`). With that in torch the tests run what runs on GPUs. The other kernels are in
`patches/cpu_stubs/sgl_kernel/speculation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from patches.base import EITHER, Hook, Patch, resolve
from patches.cpu.attention import BACKEND, AttentionPlan, plan
from patches.layers import Original
from patches.sglang_types import AttentionLayer, ForwardBatch, ModelRunner, TorchBackend
from patches.sglang_types.models import RequestTable

if TYPE_CHECKING:
    from torch import Tensor

FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
TORCH = "torch_native"
PLAN = "_toolkit_verify_plan"


class Verification(Protocol):
    """SGLang's `EagleVerifyInput` or `NgramVerifyInput`: the drafted tokens of a batch.

    `custom_mask`, where `tree_topk` is not 1: which of its nodes a node sees, [batch * nodes *
    nodes]."""

    draft_token_num: int
    tree_topk: int
    custom_mask: Tensor | None


class Factory(Protocol):
    """SGLang's `DraftBackendFactory`."""

    draft_model_runner: ModelRunner
    draft_attn_backend: str | None
    speculative_num_steps: int
    topk: int


def _verify(
    original: Original[object],
    self: TorchBackend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: AttentionLayer,
    forward_batch: ForwardBatch,
    save_kv_cache: bool = True,
    **more: object,
) -> object:
    if not forward_batch.forward_mode.is_target_verify():
        return original(self, q, k, v, layer, forward_batch, save_kv_cache, **more)
    if more.get("sinks") is not None or (layer.sliding_window_size or -1) > -1:
        raise NotImplementedError("drafts with attention sinks or windows on a CPU")
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    spec: Verification = forward_batch.spec_info
    nodes, pool = spec.draft_token_num, self.token_to_kv_pool
    if save_kv_cache:
        place = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
        pool.set_kv_buffer(layer, place, k, v)
    laid = getattr(forward_batch, PLAN, None)
    if laid is None:
        table = self.req_to_token_pool.req_to_token
        laid = plan(table, forward_batch.req_pool_indices, forward_batch.seq_lens + nodes)
        setattr(forward_batch, PLAN, laid)
    tree = None
    if spec.tree_topk != 1 and spec.custom_mask is not None:
        tree = spec.custom_mask.view(-1, nodes, nodes)
    query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    return attend(query, keys, values, laid, nodes, tree, layer.scaling).flatten(1)


def attend(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionPlan,
    nodes: int,
    tree: Tensor | None,
    scaling: float | None,
) -> Tensor:
    """`query` [B * nodes, heads, D] against slots of `k_cache`, `v_cache` [slots, KV heads, D].

    The last `nodes` of a request's slots are those of its drafted tokens. A row sees all before
    them, and of them those that `tree` [B, nodes, nodes] says; without one, itself and those
    before it.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    keys = k_cache.index_select(0, batch.slots).transpose(0, 1).to(query.dtype)
    values = v_cache.index_select(0, batch.slots).transpose(0, 1).to(query.dtype)
    shared = query.shape[1] != keys.shape[0]
    chain = torch.ones(nodes, nodes, dtype=torch.bool).tril()
    out = query.new_empty((len(query), query.shape[1], values.shape[2]))
    for number, (begin, end) in enumerate(zip(batch.bounds, batch.bounds[1:], strict=False)):
        rows = slice(number * nodes, (number + 1) * nodes)
        mask = torch.ones(nodes, end - begin, dtype=torch.bool)
        mask[:, -nodes:] = chain if tree is None else tree[number]
        out[rows] = scaled_dot_product_attention(
            query[rows].transpose(0, 1)[None],
            keys[None, :, begin:end],
            values[None, :, begin:end],
            attn_mask=mask,
            enable_gqa=shared,
            scale=scaling,
        )[0].transpose(0, 1)
    return out


def _extend(
    original: Original[object],
    self: object,
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_prefix_lens: Tensor,
    extend_seq_lens: Tensor,
    *rest: object,
    **options: object,
) -> object:
    """A row with which DP attention pads a draft's extend is one token long and extends by more."""
    import torch

    seq_lens = torch.maximum(seq_lens, (extend_prefix_lens + extend_seq_lens).to(seq_lens.dtype))
    return original(
        self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens,
        extend_prefix_lens, extend_seq_lens, *rest, **options,
    )  # fmt: skip


class DraftSteps:
    """What SGLang calls a multi-step draft backend: a torch backend for each step but the last."""

    def __init__(self, model_runner: ModelRunner, topk: int, steps: int) -> None:
        step = _step()
        self.topk, self.speculative_num_steps = topk, steps
        self.attn_backends = [step(model_runner) for _ in range(steps - 1)]
        self.device = "cpu"

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Of each step: the lengths and, where there are branches, a row of slots for each."""
        import torch

        table = self.attn_backends[0].req_to_token_pool.req_to_token
        rows, lengths = forward_batch.req_pool_indices, forward_batch.seq_lens
        if self.topk > 1:
            table = branches(table, rows, lengths, self.topk, self.speculative_num_steps)
            rows = torch.arange(len(table))
        for step, backend in enumerate(self.attn_backends):
            after = lengths.repeat_interleave(self.topk) + step + 1
            backend.toolkit_slots = (table, rows, after)
            backend.init_forward_metadata(forward_batch)


def branches(table: Tensor, rows: Tensor, lengths: Tensor, topk: int, steps: int) -> Tensor:
    """A row of slots for each of `topk` branches: the request's, then the branch's own `steps` of
    those behind. `table` [requests, slots]; [batch * topk, slots]."""
    each = table[rows].repeat_interleave(topk, dim=0)
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for branch in range(topk):
            begin = length + branch * steps
            own = table[row, begin : begin + steps]
            each[i * topk + branch, length : length + steps] = own
    return each


class StepBackend(Protocol):
    """A torch backend that decodes one step of a draft.

    `toolkit_slots`: a table of slots, the batch's rows in it, and how many of each hold KV."""

    req_to_token_pool: RequestTable
    toolkit_slots: tuple[Tensor, Tensor, Tensor]

    def __call__(self, model_runner: ModelRunner) -> StepBackend: ...

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None: ...


def _step() -> StepBackend:
    kind = resolve(BACKEND)

    class DraftStep(kind):  # type: ignore[misc, valid-type]
        """Decodes with the lengths of its step, whatever the batch says."""

        def _run_sdpa_forward_decode(
            self,
            query: Tensor,
            output: Tensor,
            k_cache: Tensor,
            v_cache: Tensor,
            req_to_token: Tensor,
            req_pool_indices: Tensor,
            seq_lens: Tensor,
            *rest: object,
            **options: object,
        ) -> object:
            args = (query, output, k_cache, v_cache, *self.toolkit_slots, *rest)
            return super()._run_sdpa_forward_decode(*args, **options)

    return DraftStep  # type: ignore[return-value]


def _decode_backend(original: Original[object], self: Factory) -> object:
    if self.speculative_num_steps <= 1 or not _is_torch(self):
        return original(self)
    return _named(DraftSteps(self.draft_model_runner, self.topk, self.speculative_num_steps))


def _extend_backend(original: Original[object], self: Factory) -> object:
    if not _is_torch(self):
        return original(self)
    return _named(resolve(BACKEND)(self.draft_model_runner))


def _is_torch(factory: Factory) -> bool:
    flags = factory.draft_model_runner.server_args
    return (factory.draft_attn_backend or flags.attention_backend) == TORCH


def _named(backend: object) -> object:
    """As SGLang says on each backend what it is."""
    for each in (backend, *getattr(backend, "attn_backends", ())):
        for of in ("prefill", "decode"):
            setattr(each, f"{of}_attention_backend_str", TORCH)
    return backend


def _keep_overlap(original: Original[None], server_args: object) -> None:
    """SGLang turns the overlap scheduler off here; the kernel that it lacks is `_gather`."""


def _gather(original: Original[object], indices: Tensor, *buffers: Tensor | None) -> object:
    """The same rows of several buffers."""
    return tuple(None if each is None else each[indices] for each in buffers)


def _no_streams() -> None:
    """MTP models synchronise CUDA when they take the target's embedding (`set_embed_and_head`), and
    the overlap scheduler tells the allocator of CUDA which stream uses a tensor
    (`FutureMap._resolve_spec_extras`). A CPU has neither."""
    import torch

    def nothing(*_: object) -> None:
        return None

    if not torch.cuda.is_available():
        torch.cuda.synchronize = nothing
        torch.Tensor.record_stream = nothing


PATCH = Patch(
    name="cpu_drafts",
    why="the torch backend has no verification and no draft steps",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(
            f"{BACKEND}.forward_extend",
            _verify,
            ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"),
        ),
        Hook(
            f"{BACKEND}._run_sdpa_forward_extend",
            _extend,
            (
                "self", "query", "output", "k_cache", "v_cache", "req_to_token",
                "req_pool_indices", "seq_lens", "extend_prefix_lens", "extend_seq_lens",
            ),
        ),
        Hook(
            "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu",
            _keep_overlap,
            ("server_args",),
        ),
        Hook(
            "sglang.kernels.ops.speculative.gather_spec_extras.gather_spec_extras",
            _gather,
            ("indices", "topk_p_buf", "topk_index_buf", "output_tokens_buf", "hidden_states_buf"),
        ),
        Hook(f"{FACTORY}.create_decode_backend", _decode_backend, ("self",)),
        Hook(f"{FACTORY}.create_draft_extend_backend", _extend_backend, ("self",)),
    ),
    requires=("sglang.srt.mem_cache.memory_pool.KVWriteLoc",),
    attach=_no_streams,
    independent_of={
        "cpu_attention_sinks": "it looks at layers with sinks, which are not verified here",
        "cpu_deterministic": "lengths are set right before or behind it alike",
    },
)  # fmt: skip
