"""A cost model of real CPU workers: what their steps take in CPU time, from a run of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.common import cpu_seconds, family
from toolkit.bench.errors import BenchError
from toolkit.profile.latency import fit
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, Service, Transfer

if TYPE_CHECKING:
    from toolkit.launch.running import Running
    from toolkit.profile.tap import Tap


@dataclass
class Fitted:
    """The model, and what the fits said of steps that they had not seen (relative errors)."""

    cost: Linear
    errors: dict[str, float]


def bystanders(up: Running, client: int) -> Callable[[], float]:
    """CPU seconds so far of all around the schedulers: HTTP, detokenizers, router, client."""
    import psutil

    roots = [w.pid for w in up.workers if w.pid is not None]
    roots += [up.router_pid] if up.router_pid is not None else []
    pids = [
        pid
        for pid in family(roots)
        if not psutil.Process(pid).cmdline()[:1]
        or "sglang::scheduler" not in psutil.Process(pid).cmdline()[0]
    ]
    return lambda: cpu_seconds([*pids, client])


def fitted(tap: Tap, output_tokens: int, service_s: float, transfer_base: float) -> Fitted:
    """From what `tap` heard of all workers while so many tokens were made, which took bystanders
    `service_s` of CPU time. BenchError: too few steps."""
    import numpy as np

    columns = tap.heard.columns
    blocks = [rows for each in tap.heard.steps.values() for rows in each]
    rows = np.concatenate([block[:, : len(columns)] for block in blocks])
    at = {name: rows[:, i] for i, name in enumerate(columns)}
    decode = at["decode"] == 1
    one = np.ones(len(rows))
    plain = np.stack([one, at["requests"], at["kv_tokens"]], axis=1)
    fresh = np.stack([one, at["new_tokens"], at["new_tokens"] ** 2 / 2], axis=1)
    step = fit(("1", "requests", "kv tokens"), plain[decode], at["cpu_seconds"][decode])
    prompt = fit(("1", "new tokens", "pairs"), fresh[~decode], at["cpu_seconds"][~decode])
    if step is None or prompt is None:
        raise BenchError(f"{int(decode.sum())} decode and {int((~decode).sum())} prefill steps")
    base, per_request, per_kv_token = step.coefficients
    begin, per_token, per_pair = prompt.coefficients
    cost = Linear(
        decode=Decode(base=base, per_request=per_request, per_kv_token=per_kv_token),
        prefill=Prefill(base=begin, per_token=per_token, per_pair=per_pair),
        transfer=Transfer(base=transfer_base),
        service=Service(per_token=service_s / output_tokens),
    )
    errors = {"decode": step.held_out_error, "prefill": prompt.held_out_error}
    return Fitted(cost, errors)
