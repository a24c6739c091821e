"""Prometheus metrics, and a bounded ring that says where each request's milliseconds went."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from toolkit.contract.request_class import RequestClass
from toolkit.router.renamed_metrics import Registry
from toolkit.router.worker_listener import WorkerListener

if TYPE_CHECKING:
    from toolkit.contract.events import GaveWay
    from toolkit.limited_logs import Limited
    from toolkit.router.worker import Worker

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RING = 4096


@dataclass(slots=True)
class Timing:
    """Seconds of one attempt that reached its first byte.

    `queue` admission and credit; `prefill` POST to prefill_done; `decide` prefill_done to the
    decode POST (decision included); `first` decode POST to its first byte.
    """

    queue: float = 0.0
    prefill: float = 0.0
    decide: float = 0.0
    first: float = 0.0


class Metrics(WorkerListener):
    """One registry per router, so that tests can run several in one process.

    `shared`: the folder in which all processes of this router count together
    (PROMETHEUS_MULTIPROC_DIR, which must be set before this module is imported).
    """

    def __init__(self, shared: str | None = None) -> None:
        self._shared = shared
        self._collectors: list[Collector] = []
        self._logs: Limited | None = None
        self.registry = CollectorRegistry()
        one: dict[str, Any] = {"namespace": "toolkit_router", "registry": self.registry}
        self.requests = Counter(
            "requests", "Client requests by endpoint and status", ["endpoint", "status"], **one
        )
        self.retries = Counter("retries", "Requests run again from scratch", **one)
        self.poisoned = Counter("poisoned", "Requests given up as they fail workers", **one)
        self.ejected = Counter("ejected", "Workers left alone as they fail", ["worker"], **one)
        self.notices = Counter(
            "notices", "Notices between routers over the same workers", ["kind", "outcome"], **one
        )
        self.resumes = Counter("resumes", "Streams resumed on another worker", **one)
        self.early = Counter("early", "Streams that began with their prefill's token", **one)
        self.chosen_early = Counter(
            "chosen_early", "Decode workers chosen while the prompt's last chunks ran", **one
        )
        self.prefill_only = Counter(
            "prefill_only", "Requests for one token that no decode worker heard of", **one
        )
        self.tokens = Counter("tokens", "Output tokens relayed in streams", **one)
        self.disconnects = Counter("disconnects", "Clients that went away early", **one)
        self.ttft = Histogram("ttft_seconds", "Arrival to first byte", buckets=_SECONDS, **one)
        self.class_ttft = Histogram(
            "class_ttft_seconds", "Arrival to first byte", ["class"], buckets=_SECONDS, **one
        )
        self.class_requests = Counter(
            "class_requests", "Client requests that are not standard", ["class"], **one
        )
        self.stood_still = Counter(
            "gave_way",
            "Best-effort prompts that stopped between layers, and answers that were put aside, for"
            " latency-sensitive requests",
            ["worker", "kind"],
            **one,
        )
        self.stood_still_seconds = Counter(
            "gave_way_seconds",
            "For how long: batches of prompts, and each answer",
            ["worker", "kind"],
            **one,
        )
        self.tpot = Histogram(
            "tpot_seconds", "Mean time per output token after the first", buckets=_SECONDS, **one
        )
        self.bind = Histogram(
            "prefill_done_to_first_seconds",
            "Prefill done to the decode's first byte",
            buckets=_SECONDS,
            **one,
        )
        self.transfer = Histogram(
            "kv_transfer_seconds", "KV transfer as the prefill saw it", buckets=_SECONDS, **one
        )
        self.transfer_bytes = Counter("kv_transfer_bytes", "KV moved to decode workers", **one)
        self.pool_wait = Histogram(
            "pool_wait_seconds",
            "From the end of a prefill until its decode rank is chosen, in the pool",
            buckets=_SECONDS,
            **one,
        )
        self.moves = Counter(
            "moves",
            "Orders to move a request to another rank, by who wanted it, kind and outcome",
            ["why", "kind", "outcome"],
            **one,
        )
        self.moves_kept = Counter(
            "moves_kept",
            "Moves that had begun and did not take place, by kind and cause",
            ["kind", "cause"],
            **one,
        )
        self.move_stall = Histogram(
            "move_stall_seconds",
            "From the last event of the rank that a stream left to the next event",
            buckets=_SECONDS,
            **one,
        )
        self.moved_tokens = Counter("moved_tokens", "KV tokens of requests that moved", **one)
        # Each is set by one process alone, but for the lines of logs.
        level = one | {"multiprocess_mode": "livesum"}
        self.running = Gauge("running", "Requests that hold a slot", **level)
        self.queued = Gauge("queued", "Requests that wait for a slot", **level)
        self.parked = Gauge("parked", "Prefills whose decode is not chosen yet", **level)
        self.inflight = Gauge(
            "worker_inflight", "Requests of this router on a worker", ["worker", "dp_rank"], **level
        )
        self.held = Gauge(
            "worker_held", "1 when it gets no new requests", ["worker", "dp_rank"], **level
        )
        self.healthy = Gauge("worker_healthy", "1 when the worker answers", ["worker"], **level)
        self.unlogged = Gauge(
            "log_lines_left_out",
            "Log lines since the start that were left out, as too many were alike",
            **level,
        )
        self.ring: deque[Timing] = deque(maxlen=RING)
        self.transfers: deque[float] = deque(maxlen=RING)
        self.resumed = 0
        self.retried = 0

    def classed(self, request_class: RequestClass) -> None:
        """A request came."""
        if request_class != RequestClass.STANDARD:
            self.class_requests.labels(str(request_class)).inc()

    def began(self, seconds: float, request_class: RequestClass) -> None:
        """A client has its first byte, so long after its request came."""
        self.ttft.observe(seconds)
        if request_class != RequestClass.STANDARD:
            self.class_ttft.labels(str(request_class)).observe(seconds)

    def export(self, collector: Collector) -> None:
        """Show what others count as well."""
        self._collectors.append(collector)

    def watch_logs(self, limited: Limited) -> None:
        """Export how many lines of this process's log were left out."""
        self._logs = limited

    def look(self) -> None:
        """What is exported as it is now, now and then."""
        if self._logs is not None:
            self.unlogged.set(self._logs.left_out)

    def timing(self, timing: Timing, late: bool) -> None:
        self.ring.append(timing)
        if late:
            self.bind.observe(timing.decide + timing.first)

    def gave_way(self, worker: Worker, event: GaveWay) -> None:
        labels = worker.name, event.kind
        self.stood_still.labels(*labels).inc(event.requests)
        self.stood_still_seconds.labels(*labels).inc(max(0.0, event.seconds))

    def transferred(self, seconds: float, size: int) -> None:
        self.transfers.append(seconds)
        self.transfer.observe(seconds)
        self.transfer_bytes.inc(size)

    def moved(self, stall_s: float, tokens: int) -> None:
        """A stream goes on on another rank."""
        self.move_stall.observe(stall_s)
        self.moved_tokens.inc(tokens)

    def clear_rings(self) -> None:
        """Start anew."""
        self.ring.clear()
        self.transfers.clear()

    def seconds(self) -> dict[str, list[float]]:
        """Each part of the ring."""
        return {
            field.name: [getattr(timing, field.name) for timing in self.ring]
            for field in fields(Timing)
        }

    def text(self) -> bytes:
        """The page for Prometheus; of all processes that count together."""
        self.look()
        page = Registry()
        for collector in self._collectors:
            page.register(collector)
        if self._shared is None:
            page.register(self.registry)
        else:
            MultiProcessCollector(page, self._shared)  # type: ignore[no-untyped-call]
        return generate_latest(page)
