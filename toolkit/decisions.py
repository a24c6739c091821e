"""Decisions on record: what a policy was shown and what it answered, to be played again.

A recording is JSON lines. The first names the policy, `{"policy", "seed"}` (one further down is a
process that was started again); each other one is something that the policy was told, in order:

- `{"choose": {"workers": [...], "request": {...}}, "index": 1, "reason": "..."}`, a decision, with
  `index` null where there was none
- `{"sent": [rid, [name, dp rank], {request}, generated]}`, `{"counted": [rid, tokens]}`,
  `{"ended": [rid, finished]}`, `{"lost": [name, dp rank]}`: what BR-H's lengths were told

Policies have no clock and no other input, so whoever plays a recording on a fresh policy gets the
same answers: SGLang's DP controller wraps its policy in `Recorded`; the router does not record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol, TextIO

from toolkit.policies import make_policy
from toolkit.policies.base import Decision, Load, Policy, RequestView, WorkerView

Key = tuple[str, int]


class Lengths(Protocol):
    """What BR-H is told of requests in flight (`toolkit.policies.inflight_lengths`)."""

    def sent(self, rid: str, key: Key, request: RequestView, generated: int = 0) -> None: ...
    def counted(self, rid: str, tokens: int = 1) -> None: ...
    def ended(self, rid: str, finished: bool = True) -> None: ...
    def lost(self, key: Key) -> list[str]: ...


class Recorded:
    """A policy that writes what happens to it. `sink`: an open text file; flushed at each line."""

    def __init__(self, policy: Policy, sink: TextIO, seed: int = 0) -> None:
        self._policy = policy
        self._sink = sink
        self.name = policy.name
        self.needs_blocks = policy.needs_blocks
        self.needs_user = getattr(policy, "needs_user", False)
        self.needs_hash = getattr(policy, "needs_hash", False)
        inner = getattr(policy, "inflight", None)
        self.inflight: Lengths | None = None if inner is None else _RecordedLengths(inner, self)
        self.write({"policy": policy.name, "seed": seed})

    @property
    def counters(self) -> Any:
        return getattr(self._policy, "counters", None)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        decision = self._policy.choose(workers, request)
        self.write(
            {
                "choose": {"workers": [asdict(w) for w in workers], "request": plain(request)},
                "index": None if decision is None else decision.index,
                "reason": "" if decision is None else decision.reason,
            }
        )
        return decision

    def write(self, line: dict[str, Any]) -> None:
        """Put one line on record."""
        self._sink.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._sink.flush()


class _RecordedLengths:
    def __init__(self, lengths: Lengths, record: Recorded) -> None:
        self._lengths = lengths
        self._record = record

    def sent(self, rid: str, key: Key, request: RequestView, generated: int = 0) -> None:
        self._record.write({"sent": [rid, list(key), plain(request), generated]})
        self._lengths.sent(rid, key, request, generated)

    def counted(self, rid: str, tokens: int = 1) -> None:
        self._record.write({"counted": [rid, tokens]})
        self._lengths.counted(rid, tokens)

    def ended(self, rid: str, finished: bool = True) -> None:
        self._record.write({"ended": [rid, finished]})
        self._lengths.ended(rid, finished)

    def lost(self, key: Key) -> list[str]:
        self._record.write({"lost": list(key)})
        return self._lengths.lost(key)


class Replayed(NamedTuple):
    """One decision as it was recorded and as it comes out now."""

    line: int
    recorded: Decision | None
    now: Decision | None


def replay(lines: Iterable[str], policy: Policy | None = None) -> list[Replayed]:
    """Play a recording on `policy`, by default on a fresh one of the recorded name for each life.

    ValueError: not a recording, with the number of the line.
    """
    found: list[Replayed] = []
    playing = policy
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            if "policy" in line:
                playing = policy or make_policy(line["policy"], line["seed"])
            elif playing is None:
                raise ValueError("the policy is not named before it decides")
            else:
                _play(line, number, playing, found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} is no line of a recording: {error}") from error
    return found


def _play(line: dict[str, Any], number: int, policy: Policy, found: list[Replayed]) -> None:
    if "choose" in line:
        shown = line["choose"]
        now = policy.choose([_worker(w) for w in shown["workers"]], _request(shown["request"]))
        index = line["index"]
        recorded = None if index is None else Decision(index, line["reason"])
        found.append(Replayed(number, recorded, now))
        return
    inflight: Lengths = policy.inflight  # type: ignore[attr-defined]
    if "sent" in line:
        rid, key, request, generated = line["sent"]
        inflight.sent(rid, (key[0], key[1]), _request(request), generated)
    elif "counted" in line:
        inflight.counted(*line["counted"])
    elif "ended" in line:
        inflight.ended(*line["ended"])
    else:
        inflight.lost((line["lost"][0], line["lost"][1]))


def plain(request: RequestView) -> dict[str, Any]:
    """A request as JSON; a signature becomes a list."""
    data = asdict(request)
    signature = request.signature
    if signature is not None and not isinstance(signature, str):
        data["signature"] = signature.tolist()
    return data


def _request(data: dict[str, Any]) -> RequestView:
    signature = data["signature"]
    if isinstance(signature, list):
        import numpy as np

        signature = np.array(signature, dtype=np.float32)
    return RequestView(**data | {"blocks": tuple(data["blocks"]), "signature": signature})


def _worker(data: dict[str, Any]) -> WorkerView:
    load = data["load"]
    return WorkerView(**data | {"load": None if load is None else Load(**load)})
