"""A worker tells its router what happens, over one long HTTP response: `GET /toolkit/events`.

One JSON object a line (`toolkit.contract.events`): `hello` first, then `prefill_done` the moment a
prefill forward has finished, `kv_transfer` when its KV has moved, `load` per DP rank when it
changed (at most every 20 ms, from the snapshots that the schedulers leave in shared memory after
every step), `down` when one of its processes died, and `ping` after a second of silence. The
router needs no polling, and a dead worker shows as a broken stream at once. The connection is
served by a thread (`patches.streams.event_hub`), so that a worker whose HTTP loop is held up does
not look dead.

Until every rank has published a snapshot the answer is 503: only snapshots say how many requests a
rank runs at a time, and a `hello` without that number would be no promise to keep.
"""

from collections.abc import Sequence
from functools import cache
from threading import Lock

from patches import server_state
from patches.base import EITHER, Hook, Patch, PatchError, Process, Variant, refuse, resolve
from patches.dp import layout
from patches.dp.controller_process import missing_patches
from patches.dp.loads import reserved_tokens
from patches.environment import expected, installed
from patches.experts.of_model import expert_count
from patches.experts.signature import wanted_layers
from patches.flags import ASKED, WRITTEN, resolved_view
from patches.layers import Original
from patches.sglang_types import (
    ModelConfig,
    Scheduler,
    ServerArgs,
    ServingState,
    SignalHandler,
    Snapshot,
    SnapshotReader,
    TextConfig,
    TokenizerManager,
)
from patches.streams import heartbeat
from patches.streams.event_hub import EventHub
from toolkit.contract import VERSION, boot_id, run_id
from toolkit.contract.events import (
    Down,
    Experts,
    GaveWay,
    Hello,
    KvTransfer,
    LoadReading,
    PrefillDone,
    Records,
)
from toolkit.contract.paths import EVENTS

APP = "sglang.srt.entrypoints.http_server.app"
BUILDER = "sglang.srt.mem_cache.kv_cache_builder"
RECURRENT = tuple(
    f"{BUILDER}.{kind}_config"
    for kind in ("hybrid_gdn", "mamba2", "kimi_linear", "hybrid_lightning")
)
"""What finds models that keep a state, in 0.5.17."""
FAREWELL_S = 0.1
"""Time for the last event to leave before SGLang's crash handler blocks the event loop."""
LOAD_FIELDS = {
    "running": "num_running_reqs",
    "waiting": "num_waiting_reqs",
    "used_tokens": "num_used_tokens",
    "total_tokens": "num_total_tokens",
    "waiting_tokens": "num_waiting_uncached_tokens",
    "capacity_tokens": "max_total_num_tokens",
}


class SharedReader:
    """SGLang's reader of load snapshots, made for one thread, for two: the HTTP loop's and the
    event stream's."""

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self._lock = Lock()

    def __getattr__(self, name: str) -> object:
        return getattr(self._reader, name)

    def read(self, dp_rank: int) -> Snapshot | None:
        """One rank's snapshot, or None."""
        with self._lock:
            return self._reader.read(dp_rank)

    def read_all(self) -> Sequence[Snapshot]:
        """Those of all ranks that have one."""
        with self._lock:
            return self._reader.read_all()


def _loads(manager: TokenizerManager) -> list[tuple[LoadReading, float]]:
    return [
        (
            LoadReading(
                dp_rank=snapshot.dp_rank,
                **{name: int(getattr(snapshot, field)) for name, field in LOAD_FIELDS.items()},
            ),
            snapshot.timestamp,
        )
        for snapshot in manager.load_snapshot_reader.read_all()
    ]


def hub_of(manager: TokenizerManager) -> EventHub:
    """That of this server."""
    state = server_state.of(manager)
    return state.find(EventHub) or state.keep(
        EventHub(lambda: bool(manager.rid_to_state), lambda: _loads(manager), heartbeat.read_ranks)
    )


def _silent_ranks(manager: TokenizerManager) -> list[int]:
    """DP ranks that have not published a snapshot since they started."""
    # SGLang's writers make each slot with a snapshot of time 0 when they start.
    told = {each.dp_rank for each in manager.load_snapshot_reader.read_all() if each.timestamp}
    return [rank for rank in range(layout.of_server(manager.server_args)) if rank not in told]


def _hello() -> Hello:
    from importlib.metadata import version

    state = resolve("sglang.srt.entrypoints.http_server.get_global_state")()
    manager = state.tokenizer_manager
    resolved = resolved_view(manager.server_args)
    snapshots = manager.load_snapshot_reader.read_all()
    return Hello(
        contract=VERSION,
        role=resolved.disaggregation_mode,
        run=run_id.own(),
        sglang=version("sglang"),
        device=resolved.device,
        machine=_machine(resolved.device),
        architecture=next(iter(manager.model_config.hf_config.architectures or ()), ""),
        dtype=str(manager.model_config.dtype).removeprefix("torch."),
        tp_size=resolved.tp_size,
        transfer=resolved.disaggregation_transfer_backend,
        dp_size=layout.ranks(resolved),
        dp_attention=layout.together(resolved),
        model=manager.served_model_name,
        model_path=manager.model_config.model_path,
        fingerprint=_fingerprint(manager.model_config.model_path),
        experts=_experts(manager.model_config.hf_text_config, resolved),
        signature=_signature(manager.model_config.hf_text_config, resolved),
        optimistic_prefill=bool(resolved.optimistic_prefill_attempts),
        vocab_size=manager.model_config.vocab_size,
        context_length=manager.model_config.context_len,
        max_total_tokens=state.scheduler_info["max_total_num_tokens"],
        # Of ranks that differ, what all of them can do.
        max_running_requests=min((each.max_running_requests for each in snapshots), default=0),
        reserved_tokens=reserved_tokens(resolved),
        page_size=resolved.page_size,
        patches=installed(),
        stays=_stays(manager.model_config),
        boot=boot_id.own(),
        kv_dtype=resolved.kv_cache_dtype,
    )


def _stays(model: ModelConfig) -> str:
    """Why another worker cannot go on with a request of this model; empty where it can."""
    if _recurrent(model):
        return "its model keeps a recurrent state beside the KV, which does not move"
    if model.is_hybrid_swa:
        return "its model's sliding windows keep KV of their own, which does not move"
    return ""


def _recurrent(model: ModelConfig) -> bool:
    """Whether a model keeps a state beside its KV."""
    try:
        return bool(resolve(f"{BUILDER}.uses_ssm_state")(model))
    except PatchError:  # 0.5.17 asks this in the middle of a long function
        spec = resolve(f"{BUILDER}.linear_attn_model_spec")(model)
        kinds = (resolve(name)(model) for name in RECURRENT)
        return any(kind is not None for kind in kinds) or (
            spec is not None and spec.uses_mamba_radix_cache
        )


@cache
def _fingerprint(path: str) -> str:
    """Once a worker: it reads every weight file a little, on the event loop."""
    from toolkit.fingerprint import model_fingerprint

    return model_fingerprint(path)


@cache
def _machine(device: str) -> str:
    """The accelerator's name, or the processor's."""
    if device != "cpu":
        import torch

        return f"{torch.get_device_module(device).get_device_name()}"
    from pathlib import Path

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else "CPU"


def _experts(config: TextConfig, server_args: ServerArgs) -> Experts:
    """How many experts the model has and whether this worker keeps what tokens were routed to."""
    return Experts(
        count=expert_count(config),
        top_k=int(getattr(config, "num_experts_per_tok", 0) or 0),
        layers=int(config.num_hidden_layers),
        captured=bool(server_args.enable_return_routed_experts),
    )


def _signature(config: TextConfig, server_args: ServerArgs) -> Records | None:
    """What this worker's signatures are made of; None where it makes none."""
    if server_args.disaggregation_mode != "prefill" or not wanted_layers():
        return None
    return Records(list(wanted_layers()), expert_count(config))


def _dispatch_prefill_done(original: Original[None], manager: TokenizerManager) -> None:
    original(manager)
    publish = hub_of(manager).publish
    manager._result_dispatcher += type(manager._result_dispatcher)(
        [(PrefillDone, publish), (KvTransfer, publish), (GaveWay, publish)]
    )


def _describe_scheduler(
    original: Original[dict[str, object]], scheduler: Scheduler
) -> dict[str, object]:
    info = original(scheduler)
    info["toolkit_patches"] = installed()
    return info


def _refuse_unpatched_scheduler(original: Original[None], state: ServingState) -> None:
    """The schedulers have reported ready: go on only if they run with the same patches."""
    dp = layout.of_server(state.tokenizer_manager.server_args) > 1
    wanted = expected(Process.SCHEDULER)
    # A DP controller forwards only what it knows of its schedulers' reports; their processes
    # were checked by `patches.worker` before they imported anything.
    missing = wanted - set(state.scheduler_info.get("toolkit_patches", wanted if dp else ()))
    if missing:
        refuse(f"the scheduler runs without the patches {', '.join(sorted(missing))}")
    if dp and (missing := missing_patches(state.scheduler_info)):
        refuse(f"the DP controller runs without the patches {', '.join(sorted(missing))}")
    manager = state.tokenizer_manager
    serving = resolved_view(manager.server_args)
    if serving.enable_http2 or serving.ssl_certfile:
        refuse("--enable-http2 and --ssl-certfile: events want a connection that can be taken over")
    manager.load_snapshot_reader = SharedReader(manager.load_snapshot_reader)
    heartbeat.begin_http(manager)
    original(state)


def _announce_death(
    original: Original[None],
    handler: SignalHandler,
    signum: int | None = None,
    frame: object = None,
) -> None:
    """A scheduler died. SGLang now blocks for seconds of diagnostics; the router hears it first."""
    manager = handler.tokenizer_manager
    hub_of(manager).publish(Down("one of its processes died"))
    loop = manager.event_loop
    loop.call_later(FAREWELL_S, original, handler, signum, frame)


def _add_route() -> None:
    from fastapi.responses import PlainTextResponse, Response

    from patches.streams.takeover import EventResponse, Exchanges

    async def events() -> Response:
        manager = server_state.serving_manager()
        if silent := _silent_ranks(manager):
            return PlainTextResponse(f"DP ranks {silent} have not said what they run", 503)
        return EventResponse(hub_of(manager), _hello())

    app = resolve(APP)
    app.add_api_route(EVENTS, events, methods=["GET"])
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: Exchanges(build(), EVENTS)


PATCH = Patch(
    name="event_stream",
    why="the router must hear of finished prefills, load and death without polling",
    after={
        "worker_key": "it needs the server's own `send`, which others wrap",
    },
    independent_of={
        "expert_stream": "each hears messages of its own kind",
        "move_order": "each hears messages of its own kind",
        "relocation_order": "each hears messages of its own kind",
    },
    processes=frozenset({Process.MAIN}),
    hooks=(
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_request_dispatcher",
            _dispatch_prefill_done,
            ("self",),
        ),
        Hook(
            "sglang.srt.entrypoints.http_server.set_global_state",
            _refuse_unpatched_scheduler,
            ("global_state",),
        ),
        Hook(
            "sglang.srt.managers.tokenizer_manager.SignalHandler.running_phase_sigquit_handler",
            _announce_death,
            ("self", "signum", "frame"),
        ),
    ),
    requires=(
        APP,
        f"{APP}.build_middleware_stack",
        "sglang.srt.entrypoints.http_server.get_global_state",
        "uvicorn.protocols.http.httptools_impl.RequestResponseCycle.send",
    ),
    variants=(
        Variant("from 0.5.20", requires=(*ASKED, f"{BUILDER}.uses_ssm_state")),
        Variant("0.5.17", requires=(*WRITTEN, f"{BUILDER}.linear_attn_model_spec", *RECURRENT)),
    ),
    attach=_add_route,
    attach_to=(f"{APP}.build_middleware_stack",),
)

SCHEDULER_PATCH = Patch(
    name="scheduler_report",
    why="a scheduler that lost its patches must not serve",
    independent_of={
        "private_ports": "one adds to the report, the other closes ports",
    },
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.get_init_info",
            _describe_scheduler,
            ("self",),
        ),
    ),
)
