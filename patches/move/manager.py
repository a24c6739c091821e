"""What sends KV from a decode rank: SGLang's own manager of a prefill rank, over the same pool.

A decode rank has a KV manager that only receives. This is a second one, as a prefill rank has it:
it registers with the worker's bootstrap server, hears from targets where their pages are, and sends
from a thread. Both use the one transfer engine of the process, with which the receiving one has
registered the pool and the rows of metadata.
"""

import copy
from typing import Protocol

from patches.move.traffic import Chunk, ChunkQueue, MoveTraffic, Observed
from patches.pd import host_receive
from patches.sglang_types import Scheduler, Sender, SendingManager
from toolkit.contract.direct_moves import FIELDS, obstacles


class CountingManager(SendingManager, Protocol):
    """It keeps the books of what is on its way."""

    toolkit_traffic: MoveTraffic


class MoveSender(Sender, Protocol):
    """A sender of such a manager."""

    kv_mgr: CountingManager


def obstacle(scheduler: Scheduler) -> str:
    """Why this rank cannot send what it runs elsewhere; empty if it can."""
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.runtime_context import get_disagg, get_parallel

    if scheduler.disaggregation_mode != DisaggregationMode.DECODE:
        return "it is no decode worker"
    parallel, disagg = get_parallel(), get_disagg()
    flags = {field: getattr(disagg, field, None) for field in FIELDS} | {
        "pp_size": parallel.pp_size,
        "attn_cp_size": parallel.attn_cp_size,
        "dcp_size": parallel.attn_dcp_size,
        "enable_hisparse": scheduler.enable_hisparse,
    }
    queue = scheduler.disagg_decode_prealloc_queue
    reasons = {
        "the model keeps a state beside the KV of its tokens": bool(
            queue.kv_manager.kv_args.state_types
        ),
        "KV that comes into host memory first": host_receive.on(scheduler),
        "staging buffers": queue.enable_staging,
    }
    return ", ".join([*obstacles(flags), *(why for why, there in reasons.items() if there)])


def sending_manager(scheduler: Scheduler) -> CountingManager:
    """SGLang's manager of a prefill rank, over this decode rank's pool and metadata."""
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager
    from sglang.srt.disaggregation.utils import DisaggregationMode, is_mla_backend
    from sglang.srt.runtime_context import get_parallel

    class Sending(MooncakeKVManager):  # type: ignore[misc]
        """The receiving manager of this process has registered the same memory."""

        def __init__(self, *args: object) -> None:
            self.toolkit_traffic = MoveTraffic()
            super().__init__(*args)
            queues: list[ChunkQueue[Chunk]] = vars(self)["transfer_queues"]
            self.transfer_queues = [Observed(queue, self.toolkit_traffic) for queue in queues]

        def transfer_worker(
            self, queue: ChunkQueue[Chunk], *args: object, **kwargs: object
        ) -> None:
            super().transfer_worker(Observed(queue, self.toolkit_traffic), *args, **kwargs)

        def register_buffer_to_engine(self) -> None:
            pass

        def deregister_buffer_to_engine(self) -> None:
            pass

    queue = scheduler.disagg_decode_prealloc_queue
    pool, args = queue.token_to_kv_pool, copy.copy(queue.kv_manager.kv_args)
    # As `PrefillBootstrapQueue._init_kv_manager` fills them in.
    args.engine_rank = get_parallel().tp_rank
    args.rust_http_port = None
    args.prefill_start_layer = pool.start_layer
    args.prefill_end_layer = getattr(pool, "end_layer", None)
    mla = is_mla_backend(pool)
    if not mla:
        args.kv_head_num = pool.head_num
        args.total_kv_head_num = scheduler.model_config.get_total_num_kv_heads()
    return Sending(args, DisaggregationMode.PREFILL, scheduler.server_args, mla)
