"""Run the calibration prompts through real workers and keep what they were routed to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.contract.events import Hello
from toolkit.contract.headers import CAPTURE
from toolkit.profile import tally
from toolkit.profile.calibration_prompts import CalibrationPrompt
from toolkit.profile.shards import Shard, Shards
from toolkit.profile.tap import PHASES, Heard, PhaseRows, Tap
from toolkit.profile.waves import waves
from toolkit.profile_folder.errors import ProfileError

if TYPE_CHECKING:
    import aiohttp
    import numpy as np

TOKENS_KEPT = 48
"""Of each request and phase at most this many tokens are kept with their ids."""
STEPS_WAIT_LIMIT_S = 3.0
"""A router that may (`allow` has "capture") has the experts of such a request kept."""
LOADS = ("requests", "prompt_tokens", "prompt_tokens_squared", "kv_tokens")
"""The columns of a step that are CascadeInfer's F_1 to F_4."""


@dataclass(frozen=True)
class CalibrationSettings:
    """How requests are sent. `most` is the largest wave; temperature > 0 keeps small models from
    running in circles, which greedy output does and traffic does not."""

    output_tokens: int = 64
    most: int = 16
    temperature: float = 0.8
    seed: int = 0
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Facts:
    """What the workers say of themselves, and agree on."""

    hellos: dict[str, Hello]
    experts: int
    top_k: int

    @property
    def first(self) -> Hello:
        return next(iter(self.hellos.values()))


def facts(hellos: dict[str, Hello]) -> Facts:
    """Check that these workers can be profiled.

    Raises:
        ProfileError: a dense model, workers that capture nothing, or workers that differ.
    """
    found = {(h.experts.count, h.experts.top_k) for h in hellos.values()}
    prints = {h.fingerprint for h in hellos.values()}
    if len(found) != 1 or len(prints) != 1:
        raise ProfileError(f"the workers serve different models: {', '.join(sorted(prints))}")
    experts, top_k = found.pop()
    if experts <= 1 or top_k < 1:
        raise ProfileError(
            f"{next(iter(hellos.values())).model} is a dense model: it has no experts to profile"
        )
    blind = [url for url, hello in hellos.items() if not hello.experts.captured]
    if blind:
        raise ProfileError(
            f"{', '.join(blind)} keep no experts: put `capture_experts: true` into the deployment "
            "file and launch it again"
        )
    return Facts(hellos, experts, top_k)


class CalibrationRun:
    """Sends the waves that `shards` does not have yet, one after the other."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        router: str,
        tap: Tap,
        prompts: list[CalibrationPrompt],
        settings: CalibrationSettings,
        shards: Shards,
    ) -> None:
        self._session = session
        self._router = router.rstrip("/")
        self._tap = tap
        self._prompts = prompts
        self._settings = settings
        self._shards = shards
        self._facts = facts(tap.hellos)

    async def run(self, progress: Callable[[int, int], None]) -> None:
        """`progress(done, all)` in requests, after every wave.

        Raises:
            ProfileError: a request failed, or its experts did not arrive.
        """
        plan = waves(self._prompts, self._settings.most, self._settings.seed)
        done = sum(len(wave) for wave in plan[: self._shards.done])
        progress(done, len(self._prompts))
        for number in range(self._shards.done, len(plan)):
            shard = await self._wave(plan[number])
            # In a thread: what the workers say meanwhile is read, and not left in their memory.
            await asyncio.to_thread(self._shards.add, shard)
            done += len(plan[number])
            progress(done, len(self._prompts))

    async def _wave(self, indices: list[int]) -> Shard:
        heard = self._tap.heard
        for steps in heard.steps.values():
            steps.clear()
        heard.transfers.clear()
        answers = await asyncio.gather(*(self._one(index) for index in indices))
        rows = [answer[1] for answer in answers]
        await self._wait_for_steps(rows)
        seconds = [answer[0] for answer in answers]
        seed = self._settings.seed
        return reduce(heard, self._facts, self._shards, self._prompts, indices, seconds, rows, seed)

    async def _one(self, index: int) -> tuple[float, dict[str, PhaseRows]]:
        """(seconds, rows by phase) of one request."""
        prompt, settings = self._prompts[index], self._settings
        rid = f"profile-{settings.seed}-{index}-{time.time_ns():x}"
        path, body = request(prompt, settings, self._facts.first.model, rid)
        begin = time.perf_counter()
        async with self._session.post(
            self._router + path, json=body, headers={CAPTURE: "1"}
        ) as response:
            text = await response.text()
            if response.status != 200:
                raise ProfileError(f"prompt {prompt.id}: HTTP {response.status} {text[:300]}")
        seconds = time.perf_counter() - begin
        rows = await self._tap.request(rid, PHASES, settings.timeout_s)
        if not all(phase.whole for phase in rows.values()):
            raise ProfileError(
                f"prompt {prompt.id} was retracted or resumed in mid-run, or its KV came back from "
                "host memory: give the workers more kv_tokens, or profile with smaller waves "
                "(--concurrency), and without --enable-hierarchical-cache"
            )
        return seconds, rows

    async def _wait_for_steps(self, rows: list[dict[str, PhaseRows]]) -> None:
        """A worker sends its last block of steps right after the last request's experts."""
        deadline = time.monotonic() + STEPS_WAIT_LIMIT_S
        last: dict[tuple[str, int], float] = {}
        for phases in rows:
            decode = phases["decode"]
            last[decode.rank] = max(last.get(decode.rank, 0.0), decode.heard)
        came = self._tap.heard.steps_at
        while time.monotonic() < deadline:
            if all(came.get(rank, 0.0) >= heard for rank, heard in last.items()):
                return
            await asyncio.sleep(0.01)


def reduce(
    heard: Heard,
    known: Facts,
    shards: Shards,
    prompts: list[CalibrationPrompt],
    indices: list[int],
    seconds: list[float],
    rows: list[dict[str, PhaseRows]],
    seed: int,
) -> Shard:
    """What is kept of finished requests: counts, a few tokens, steps; affinity goes to `shards`.

    `indices` into `prompts`, `seconds` each took (NaN unknown), `rows` by phase.
    """
    import numpy as np

    whole = np.concatenate([phases[name].ids for phases in rows for name in PHASES])
    layers = tally.captured_layers(whole)
    shards.expect_layers(layers)
    ids = [{name: phases[name].ids[:, layers] for name in PHASES} for phases in rows]
    kept = [
        tally.sample_tokens(each[name], TOKENS_KEPT, seed + index)
        for index, each in zip(indices, ids, strict=True)
        for name in PHASES
    ]
    for index, each in zip(indices, ids, strict=True):
        if not prompts[index].held_out:
            for name in PHASES:
                shards.add_affinity(name, each[name], known.experts)
    pairs = zip(seconds, rows, strict=True)
    return Shard(
        indices=np.array(indices),
        prefill_counts=np.stack([tally.counts(e["prefill"], known.experts) for e in ids]),
        decode_counts=np.stack([tally.counts(e["decode"], known.experts) for e in ids]),
        prompt_tokens=np.array([len(e["prefill"]) for e in ids]),
        output_tokens=np.array([len(e["decode"]) for e in ids]),
        token_owner=np.repeat(np.repeat(indices, 2), [len(k) for k in kept]),
        tokens=np.concatenate(kept),
        steps=heard.all_steps(layers),
        columns=np.array(heard.columns),
        transfers=heard.take_transfers(len(indices)),
        loads=np.array([_loads(heard, took, phases["decode"]) for took, phases in pairs]),
    )


def _column(heard: Heard, steps: np.ndarray, name: str) -> np.ndarray:
    columns = heard.columns
    column: np.ndarray = steps[:, columns.index(name)] if columns else steps[:, :0].ravel()
    return column


def _loads(heard: Heard, seconds: float, decode: PhaseRows) -> list[float]:
    """(seconds by output token, mean F_1..F_4 of the batches that the request was in)."""
    steps = heard.rank_steps(decode.rank)
    mine = (_column(heard, steps, "decode") == 1) & (_column(heard, steps, "end") <= decode.end)
    steps = steps[mine][-len(decode.ids) :] if len(steps) else steps
    if not len(steps) or not len(decode.ids):
        return [float("nan")] * 5
    means = [float(_column(heard, steps, name).mean()) for name in LOADS]
    # The first output token is the prefill's; the decode ran the rest.
    return [seconds / (len(decode.ids) + 1), *means]


def request(
    prompt: CalibrationPrompt, settings: CalibrationSettings, model: str, rid: str
) -> tuple[str, dict[str, Any]]:
    """(path, body) of one calibration request."""
    if prompt.input_ids:
        sampling = {
            "max_new_tokens": settings.output_tokens,
            "temperature": settings.temperature,
            "ignore_eos": True,
        }
        ids = list(prompt.input_ids)
        return "/generate", {"input_ids": ids, "rid": rid, "sampling_params": sampling}
    return "/v1/chat/completions", {
        "model": model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": settings.output_tokens,
        "temperature": settings.temperature,
        "ignore_eos": True,
        "rid": rid,
    }
