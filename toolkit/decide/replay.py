"""Play recorded decisions again: `python -m toolkit.decide.replay FILE...` prints what differs.

The format is `toolkit.decide.record`'. Exit code 1 when a decision comes out otherwise.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from toolkit.bounded_files import lines_of, parse_json
from toolkit.policies import make_policy
from toolkit.policies.base import Decision, Load, Policy, RequestView, WorkerView, group_of
from toolkit.policies.rounds.assign import Assigner, Assignment

_LOAD = frozenset(Load.__struct_fields__)
"""A recording may have what loads had once."""


class Replayed(NamedTuple):
    """One decision, or one round, as it was recorded and as it comes out now."""

    line: int
    policy: str
    recorded: Decision | list[Assignment] | None
    now: Decision | list[Assignment] | None

    @property
    def differs(self) -> bool:
        return self.recorded != self.now


def replay(lines: Iterable[str], policy: Policy | None = None) -> list[Replayed]:
    """Play a recording on `policy`, by default on a fresh one of the recorded name for each life.

    ValueError: not a recording, with the number of the line.
    """
    found: list[Replayed] = []
    player: Player | None = None
    for number, text in enumerate(lines, 1):
        try:
            line = parse_json(text)
            if "policy" in line:
                fresh = make_policy(line["policy"], line["seed"], tau=line.get("tau"))
                player = Player(policy or fresh)
            elif player is None:
                raise ValueError("the policy is not named before it decides")
            else:
                found += [Replayed(number, player.name, *each) for each in player.play(line)]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"line {number} is no line of a recording: {error}") from error
    return found


class Player:
    """A policy, and who tells it what it was told."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        self.following = policy.follow()

    def play(self, line: dict[str, Any]) -> list[tuple[Any, Any]]:
        """One line; the decision that it holds, recorded and now, if it does."""
        if "choose" in line:
            return [self._choose(line)]
        if "assign" in line:
            return [self._assign(line)]
        self._tell(line)
        return []

    def _choose(self, line: dict[str, Any]) -> tuple[Any, Any]:
        shown, index = line["choose"], line["index"]
        now = self.policy.choose(
            [worker_of(w) for w in shown["workers"]], request_of(shown["request"])
        )
        return None if index is None else Decision(index, line["reason"]), now

    def _assign(self, line: dict[str, Any]) -> tuple[Any, Any]:
        if not isinstance(self.policy, Assigner):
            raise ValueError(f"{self.name} does not assign")
        shown = line["assign"]
        workers = [worker_of(w) for w in shown["workers"]]
        now = self.policy.assign(workers, [request_of(r) for r in shown["waiting"]])
        return [Assignment(*made) for made in line["made"]], now

    def _tell(self, line: dict[str, Any]) -> None:
        told = self.following
        if "sent" in line:
            rid, key, request, generated, *group = line["sent"]
            at = key_of(key)
            told.sent(
                rid, at, key_of(group[0]) if group else group_of(at, False), request_of(request),
                generated,
            )  # fmt: skip
        elif "counted" in line:
            told.counted(*line["counted"])
        elif "stepped" in line:
            key, tokens = line["stepped"]
            told.stepped(key_of(key), tokens)
        elif "ended" in line:
            told.ended(*line["ended"])
        elif "lost" in line:
            told.lost(key_of(line["lost"]))
        elif "replaced" in line:
            self.policy.replaced(line["replaced"])
        else:
            self.attach(line)

    def attach(self, line: dict[str, Any]) -> None:
        """Give the policy the centroids, in-flight signatures and maps of a line."""
        import numpy as np

        known: dict[str, Any] | None = line["centroids"]
        dimensions: int | None = line.get("inflight_signatures", line.get("residents"))
        maps: dict[str, Any] = line.get("maps", {})

        from toolkit.policies.support.expert_locality import Centroids
        from toolkit.policies.support.expert_map import ExpertMap
        from toolkit.policies.support.inflight_signatures import InflightSignatures

        locality = self.policy.locality
        if locality is None:
            raise ValueError(f"{self.name} has no use for centroids")
        if known is None:
            locality.centroids = None
        else:
            rows = np.array(known["rows"], dtype=np.float32)
            owner = {key_of(group): row for group, row in known["owner"]}
            locality.centroids = Centroids(rows, owner)
        if dimensions is None:
            locality.inflight_signatures = None
        elif locality.inflight_signatures is None:
            locality.inflight_signatures = InflightSignatures(dimensions)
        locality.maps = {name: ExpertMap.of_plain(each) for name, each in maps.items()}


def key_of(key: list[Any]) -> tuple[str, Any]:
    """A rank's key, or a group, from JSON."""
    name, rank = key
    return name, rank


def request_of(data: dict[str, Any]) -> RequestView:
    """A request from JSON."""
    signature = data["signature"]
    if isinstance(signature, list):
        import numpy as np

        signature = np.array(signature, dtype=np.float32)
    return RequestView(**data | {"blocks": tuple(data["blocks"]), "signature": signature})


def worker_of(data: dict[str, Any]) -> WorkerView:
    """A rank from JSON."""
    load = data["load"]
    known = load and Load(**{key: value for key, value in load.items() if key in _LOAD})
    return WorkerView(**data | {"load": known})


def main(files: list[str]) -> int:
    """Count decisions by policy; print each that differs."""
    counts: Counter[tuple[str, str]] = Counter()
    differ: Counter[tuple[str, str]] = Counter()
    for file in files:
        with open(file, encoding="utf-8") as lines:
            for each in replay(lines_of(lines)):
                what = (each.policy, "rounds" if isinstance(each.now, list) else "choices")
                counts[what] += 1
                differ[what] += each.differs
                if each.differs:
                    print(f"{file}:{each.line}: {each.recorded} is now {each.now}")
    for (policy, kind), count in sorted(counts.items()):
        print(f"{policy:40} {count:7} {kind:8} {differ[policy, kind]:6} differ")
    return int(differ.total() > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
