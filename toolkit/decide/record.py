"""Decisions on record: what a policy was shown and told and what it answered, to be played again.

A recording is JSON lines. The first names the policy, `{"policy", "seed", "tau"}` (one further down
is another policy, or a process that was started again); each other one is what it went through:

- `{"choose": {"workers": [...], "request": {...}}, "index": 1, "reason": "..."}`, a decision, with
  `index` null where there was none; with `"centroids": VERSION` where it has any
- `{"assign": {"workers": [...], "waiting": [...]}, "made": [[request, worker, reason], ...]}`, a
  round
- `{"sent": [rid, [name, dp rank], {request}, generated, group]}`, `{"counted": [rid, tokens]}`,
  `{"stepped": [[name, dp rank], tokens]}`, `{"ended": [rid, finished]}`, `{"lost": [name, dp
  rank]}`: what was in flight (`toolkit.policies.following`)
- `{"replaced": name}`: another process answers where that worker did
- `{"centroids": {"rows": [...], "owner": [[group, row], ...]}, "inflight_signatures": D}`: what
  ELDR got to compare signatures with, null for nothing; with `"maps": {server: {...}}` where it has
  any

Policies have no clock and no other input, so whoever plays a recording on a fresh policy gets the
same answers. Every home wraps its policies in `recorded` where it is asked to: the router by the
variable TOOLKIT_ROUTER_RECORD (`toolkit.router.decisions`), SGLang's DP controller by
TOOLKIT_DP_RECORD (`patches.dp.method`), tests and simulations by hand. What was in flight when a
recording of ELDR began is not in it: let the home be idle then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from toolkit.policies.base import Decision, Group, Policy, RequestView, WorkerView
from toolkit.policies.following import Following, Key
from toolkit.policies.rounds.assign import Assigner, Assignment

Write = Callable[[dict[str, Any]], None]

COUNTS_EVERY_S = 1.0
"""Tokens of a policy to which they say nothing are put on record so often: a what-if
(`toolkit.decide.what_if`) wants to know how long requests are by now."""


class Sink(Protocol):
    """Where lines go: an open text file, or what is written to like one."""

    def write(self, line: str, /) -> object: ...


def recorded(policy: Policy, sink: Sink | Path, seed: int = 0, tau: float | None = None) -> Policy:
    """The policy, with what happens to it written to `sink`, a line at a time; a path is appended
    to. `seed`, `tau`: those that the policy was made with."""
    if isinstance(sink, Path):
        sink = sink.open("a", encoding="utf-8", buffering=1)  # as long as the policy lives
    kind = RecordedRounds if isinstance(policy, Assigner) else Recorded
    return kind(policy, sink, seed, tau)


class Recorded(Policy):
    """A policy that writes what happens to it; see `recorded`."""

    on_record = True

    def __init__(self, policy: Policy, sink: Sink, seed: int, tau: float | None) -> None:
        self._following: _RecordedFollowing | None = None
        self._policy = policy
        self._sink = sink
        self.name, self.needs = policy.name, policy.needs
        self.inflight, self.locality = policy.inflight, policy.locality
        self.write({"policy": policy.name, "seed": seed, "tau": tau})
        if self.locality is not None:
            self.locality.on_change = self._changed

    @property
    def counters(self) -> Any:
        return self._policy.counters

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        decision = self._policy.choose(workers, request)
        self._count(request.now)
        self.write(
            {
                "choose": {"workers": workers, "request": request},
                "index": None if decision is None else decision.index,
                "reason": "" if decision is None else decision.reason,
                **self._version(),
            }
        )
        return decision

    def _version(self) -> dict[str, str]:
        """Of the centroids that it was decided by."""
        known = None if self.locality is None else self.locality.centroids
        return {} if known is None else {"centroids": known.version}

    def replaced(self, worker: str) -> None:
        self.write({"replaced": worker})
        self._policy.replaced(worker)

    def follow(self) -> Following:
        self._following = _RecordedFollowing(self._policy, self.write)
        return self._following

    def _count(self, now: float) -> None:
        if self._following is not None:
            self._following.write_counts(now)

    def write(self, line: dict[str, Any]) -> None:
        """Put one line on record."""
        self._sink.write(msgspec.json.encode(line, enc_hook=_as_list).decode() + "\n")

    def _changed(self) -> None:
        assert self.locality is not None
        known, inflight_signatures = self.locality.centroids, self.locality.inflight_signatures
        shown = known and {
            "rows": known.rows.tolist(),
            "owner": [[list(group), row] for group, row in known.owner.items()],
        }
        line = {
            "centroids": shown,
            "inflight_signatures": inflight_signatures and inflight_signatures.dimensions,
        }
        if self.locality.maps:
            line["maps"] = {name: each.plain() for name, each in self.locality.maps.items()}
        self.write(line)


class RecordedRounds(Recorded, Assigner):
    """One that assigns."""

    def assign(
        self, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
    ) -> list[Assignment]:
        assert isinstance(self._policy, Assigner)
        shown = {"workers": workers, "waiting": waiting}
        made = self._policy.assign(workers, waiting)
        self._count(max((request.now for request in waiting), default=0.0))
        made_lists = [list(each) for each in made]
        self.write({"assign": shown, "made": made_lists, **self._version()})
        return made


class _RecordedFollowing(Following):
    def __init__(self, policy: Policy, write: Write) -> None:
        super().__init__(policy.inflight, policy.locality)
        self._write = write
        self._sums: dict[str, int] = {}
        """Tokens that are not on record yet, of a policy to which they say nothing."""
        self._written = 0.0

    @property
    def lengths(self) -> bool:
        return True

    def write_counts(self, now: float) -> None:
        """Put sums of tokens on record, if those of late are not yet."""
        if now - self._written >= COUNTS_EVERY_S:
            self._written = now
            for rid, tokens in self._sums.items():
                self._write({"counted": [rid, tokens]})
            self._sums.clear()

    def sent(
        self, rid: str, key: Key, group: Group, request: RequestView, generated: int = 0
    ) -> None:
        self._write({"sent": [rid, key, request, generated, group]})
        super().sent(rid, key, group, request, generated)

    def counted(self, rid: str, tokens: int = 1) -> None:
        if self._lengths is None:
            if rid in self:
                self._sums[rid] = self._sums.get(rid, 0) + tokens
            return
        self._write({"counted": [rid, tokens]})
        super().counted(rid, tokens)

    def counter(self, rid: str) -> Callable[[int], None]:
        return partial(self.counted, rid)

    def stepped(self, key: Key, tokens: int) -> None:
        self._write({"stepped": [list(key), tokens]})
        super().stepped(key, tokens)

    def all_stepped(self, steps: Mapping[Key, int]) -> None:
        for key, tokens in steps.items():
            self.stepped(key, tokens)

    def ended(self, rid: str, finished: bool = True) -> None:
        self._sums.pop(rid, None)
        self._write({"ended": [rid, finished]})
        super().ended(rid, finished)

    def lost(self, key: Key) -> list[str]:
        self._write({"lost": list(key)})
        return super().lost(key)


def _as_list(value: Any) -> Any:
    """A signature, for JSON."""
    return value.tolist()
