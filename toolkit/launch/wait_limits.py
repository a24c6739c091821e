"""How long our router waits for a silent worker unless the deployment says so, by device.

Three silences are told apart (docs/pages/router.md, "What a silence means"). Of the *events*, which
a thread of the worker's main process writes every second: the process, its host or the network has
stopped (`silent_s`, `hung_s`). Of the *HTTP loop* of that process, of which the events tell: it
gets no new requests after `silent_s`, and keeps those that it has. Of *answers*, while events say
that the worker lives: a rank is stuck (`first_token_timeout_s`, `idle_timeout_s`).

On a GPU pauses are longer, each for its reason in SGLang 0.5.21 (by reading):

- `silent_s` 5, `hung_s` 30: the main process computes nothing on the GPU, so neither capturing CUDA
  graphs, nor a long chunk of a prefill, nor a stalled all-to-all silences its events. What does is
  Python's lock (a garbage collection; SGLang freezes the heap after the warm-up, but not what comes
  later), cores taken by compilers (each rank compiles DeepGEMM kernels with 4 processes,
  SGLANG_JIT_DEEPGEMM_COMPILE_WORKERS), and the network between hosts. A process that died is known
  at once, since its connection breaks; only a host or a network that has gone needs `hung_s`. And a
  wrong answer is dear: one decode server may hold thousands of requests, which all run again.
- `idle_timeout_s` 120: a rank that compiles a kernel in mid-traffic, captures a graph again or
  moves experts (EPLB) sends nothing meanwhile, tens of seconds. SGLang itself ends a server whose
  forward takes more than 300 s (--watchdog-timeout): to be more patient than that is in vain.
- `restart.stuck_s` 20 (5 on a CPU): a scheduler writes its heartbeat in every round of its loop,
  and waits in one for the GPU at most as long as a forward takes, which it announces. What is left
  beside that is SGLang's own Python and what it calls: milliseconds, and now and then a garbage
  collection or a stalled file system. `restart.announced_s` 300: SGLang's own bound of a forward.
- `lost_s` and `first_token_timeout_s` are the same on both: a rank that compiles publishes no
  reading, so it never says that it has no request; and 120 s for a first token suit both.
"""

from dataclasses import asdict

from toolkit.decide.watchdog import StuckBounds
from toolkit.settings.devices import CUDA
from toolkit.settings.processes import Restart
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.section import Router

_CPU = {name: field.default for name, field in RouterConfig.model_fields.items()}
_DEFAULTS: dict[str, dict[str, float]] = {"cpu": _CPU, "cuda": _CPU | CUDA}
WAIT_LIMITS: dict[str, dict[str, float]] = {
    device: {key: own[key] for key in ("silent_s", "hung_s", "lost_s", "idle_timeout_s")}
    for device, own in _DEFAULTS.items()
}
"""Seconds. Those of `cpu` are the router's own defaults, where nobody tells it the device."""

STUCK: dict[str, StuckBounds] = {
    device: StuckBounds(own["stuck_s"], own["announced_s"]) for device, own in _DEFAULTS.items()
}
"""When a rank that holds work is stuck, beside work that it has announced and in it. Those of `cpu`
are the router's own defaults."""


def bounds(device: str, restart: Restart) -> StuckBounds:
    """When a rank is stuck, by the deployment or by its device."""
    own = STUCK.get(device, STUCK["cpu"])
    return StuckBounds(
        restart.stuck_s if restart.says("stuck_s") else own.stuck_s,
        restart.announced_s if restart.says("announced_s") else own.announced_s,
    )


def of_device(device: str, restart: Restart) -> Restart:
    """The same, with the bounds of the device where it says none."""
    return restart.model_copy(update=asdict(bounds(device, restart)))


def wait_limits(device: str, router: Router) -> dict[str, float]:
    """What the router must be told: times that `router` (keys of the file) says, and those of the
    device that are not its own defaults.

    A `hung_s` that is said alone bounds `silent_s`: no worker is given up before it is left alone.
    """
    own = WAIT_LIMITS["cpu"]
    said = {key: value for key, value in router.said.items() if key in own}
    found = WAIT_LIMITS.get(device, own) | said
    if "silent_s" not in said:
        found["silent_s"] = min(found["silent_s"], found["hung_s"])
    return {key: value for key, value in found.items() if key in said or value != own[key]}
