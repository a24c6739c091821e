"""What a draft begins with on the worker that a request goes to: its last hidden state and its
candidates for the next token, in the request's row of metadata.

They decide how many drafted tokens are accepted, not which tokens come. Where they are not at hand,
under the overlap scheduler, whose next step has replaced them by then, the row has zeros: the first
step there accepts nothing and gives one token. The draft's KV goes with the model's
(`kv_data_ptrs` of a decode rank has the buffers of both).
"""

from patches.sglang_types import MetadataBuffers, Req, Scheduler


def most_a_step(scheduler: Scheduler) -> int:
    """Tokens that one decode step may give a request."""
    if scheduler.spec_algorithm.is_none():
        return 1
    return int(scheduler.server_args.speculative_num_draft_tokens or 1)


def write(scheduler: Scheduler, req: Req, row: int) -> None:
    """Into the row of a request that stops here now."""
    if scheduler.spec_algorithm.is_none():
        return
    buffers = scheduler.disagg_metadata_buffers
    for each in (buffers.output_topk_p, buffers.output_topk_index, buffers.output_hidden_states):
        each[row].zero_()
    _copy(scheduler, req, buffers, row)


def _copy(scheduler: Scheduler, req: Req, buffers: MetadataBuffers, row: int) -> None:
    batch = scheduler.running_batch
    drafts = getattr(batch, "spec_info", None)
    if scheduler.enable_overlap or drafts is None or drafts.topk_index is None:
        return
    at = next((i for i, each in enumerate(batch.reqs) if each is req), None)
    if at is None or at >= len(drafts.topk_index):
        return
    width = drafts.topk_index.shape[1]
    buffers.output_topk_p[row, :width] = drafts.topk_p[at].cpu()
    buffers.output_topk_index[row, :width] = drafts.topk_index[at].cpu()
    buffers.output_hidden_states[row] = drafts.hidden_states[at].cpu()
