"""What the router bounds: requests, their silence, bodies, connections. Times are in seconds."""

from typing import Annotated, Literal

from pydantic import Field

from toolkit.settings.rules import BOTH, OURS, PARKS
from toolkit.settings.section import Count, Natural, Seconds, Section, Share, key

Finite = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Relays = Annotated[int, Field(ge=1, le=64)] | Literal["auto"]


class Waits(Section):
    """How many requests run and wait, and how long.

    `parked_per_prefill` bounds the requests that one prefill DP rank may hold whose decode worker
    is not chosen yet: each of them can keep its KV locked there. Times prefill ranks it bounds the
    pool of the policies that have one, and `park_timeout_s` the time in it. `silent_s` without any
    event takes a worker out of new decisions, `hung_s` also gives up the requests that it runs. A
    worker whose events say that its HTTP loop has been held up for `silent_s` is taken out as well,
    and keeps what it runs. `lost_s` is longer than SGLang compiles a grammar (50 s), which no
    reading shows. `eject_share`: 0 ejects none (`toolkit.decide.ejection`).
    """

    max_inflight: Count = key(256, "parts of requests that run at the same time", BOTH)
    relays: Relays = key(
        1,
        "processes that have the clients, beside one that decides for all (1: one process does "
        "both; auto: by the cores and by `max_inflight`)",
        OURS,
    )
    max_queue: Natural = key(512, "parts that wait; more get 429", BOTH)
    parked_per_prefill: Count = key(
        8,
        "finished prefills that one prefill rank may hold whose decode worker is not chosen yet",
        PARKS,
    )
    park_timeout_s: Seconds = key(
        30.0, "how long a finished prefill may wait for its decode worker, seconds", PARKS
    )
    request_timeout_s: Seconds = key(600.0, "the longest time of one request, seconds", BOTH)
    silent_s: Seconds = key(
        1.5,
        "a worker without any event, or whose HTTP is held up, for so long gets no new request, "
        "seconds",
        OURS,
    )
    hung_s: Seconds = key(
        5.0, "a worker without any event for so long loses its requests, seconds", OURS
    )
    lost_s: Seconds = key(
        60.0, "a request runs again when its rank has none for so long, seconds", OURS
    )
    first_token_timeout_s: Seconds = key(
        120.0, "how long a worker may be silent before a first token, seconds", OURS
    )
    idle_timeout_s: Seconds = key(
        60.0, "how long a worker may be silent in mid-stream, seconds", OURS
    )
    eject_share: Share = key(
        0.5, "the largest share of a role that is left alone because it fails", OURS
    )
    max_retries: Natural = key(3, "how often a request runs again when workers fail it", OURS)


class Bodies(Section):
    """Bounds before work. All parts that run and wait are at most `max_inflight` + `max_queue`,
    batches three quarters of it (`toolkit.router.budget`, `bodies`, `parsing`)."""

    max_parts: Count = key(512, "parts (prompts times `n`) that one request may have", OURS)
    max_body_mib: Count = key(64, "the largest body, MiB", OURS)
    max_body_total_mib: Annotated[int, Field(ge=2)] = key(
        256, "memory of all bodies that are read, parsed, queued or run, MiB", OURS
    )
    max_connections: Count = key(16384, "open connections; idle ones are closed first", OURS)
    head_timeout_s: Seconds = key(15.0, "time for the head of a request, seconds", OURS)
    keepalive_s: Seconds = key(
        75.0, "how long a connection may be idle between requests, seconds", OURS
    )
    body_timeout_s: Seconds = key(300.0, "time for a body, seconds", OURS)
    body_pace_kib: Annotated[float, Field(ge=0, allow_inf_nan=False)] = key(
        16.0, "the slowest pace of a body, KiB/s; 0 asks for none", OURS
    )
    accept_gzip: bool = key(
        False, "take bodies with `Content-Encoding: gzip`; otherwise they get 415", OURS
    )
    parse_cpu_ms: Finite = key(
        100.0,
        "CPU time for checking a body that is not an ordinary one, and half a second more for each "
        "MiB of it; then 400, ms",
        OURS,
    )
    write_stall_s: Finite = key(
        20.0,
        "a client whose connection takes nothing for so long, while something waits to be written, "
        "is dropped, seconds",
        OURS,
    )


class Stuck(Section):
    """When a rank that holds work is stuck (`toolkit.decide.watchdog`): after `stuck_s`, or five
    times what its present step should take, if that is longer. After half of it the rank gets
    nothing new."""

    stuck_s: Annotated[float, Field(ge=0)] = key(
        5.0,
        "a rank that holds work and makes no step for so long is stuck: its requests go elsewhere, "
        "and the launcher starts its worker again (0: nobody looks), seconds",
    )
    announced_s: Seconds = key(
        120.0,
        "the same for what a rank has announced and cannot foresee, such as a kernel's "
        "compilation, seconds",
    )
