"""What a policy sees and what it answers. Pure data: no clock, no socket, no torch.

The router builds the views; the simulator and the tests build the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import msgspec

from toolkit.contract.request_class import RequestClass

if TYPE_CHECKING:
    import numpy as np

_BEST_EFFORT, _URGENT = RequestClass.BEST_EFFORT, RequestClass.LATENCY_SENSITIVE
"""Python 3.11 looks a member up slowly, and every decision asks."""
Side = Literal["prefill", "decode"]
Group = tuple[str, int | None]
"""Ranks whose steps load the same experts: (server, None) is all of a server's, (server, DP rank)
that one by itself."""


# A decision makes two of these for every rank: a msgspec.Struct is made in a tenth of the time that
# a frozen dataclass takes.


class Load(msgspec.Struct, frozen=True):
    """A worker's last published reading plus what was sent to it after that reading.

    Tokens are KV tokens. `sent_*` is the correction: work that the reading cannot contain yet.
    """

    running: int
    waiting: int
    used_tokens: int
    total_tokens: int
    waiting_tokens: int
    sent_requests: int = 0
    sent_tokens: int = 0

    @property
    def requests(self) -> int:
        """Requests on the worker now: running + waiting + sent since."""
        return self.running + self.waiting + self.sent_requests

    @property
    def usage(self) -> float:
        """KV pool usage in [0, 1]; 0 when the pool's size is unknown."""
        return self.used_tokens / self.total_tokens if self.total_tokens > 0 else 0.0


class WorkerView(msgspec.Struct, frozen=True):
    """One choice: a (server, DP rank). `inflight*` is this router's own count; `slots` how many
    requests it runs at a time at most, 0 for a plain SGLang, which does not say; `reserve` how many
    KV tokens it keeps free for each of them, beside what it holds, before it takes one more (a
    decode worker's `--num-reserved-decode-tokens`); `shares_experts`: see `group_of`;
    `step_tokens`: that a decode step gives a request, more than 1 where drafts are accepted."""

    name: str
    url: str = ""
    dp_rank: int = 0
    healthy: bool = True
    inflight: int = 0
    inflight_tokens: int = 0
    load: Load | None = None
    slots: int = 0
    reserve: int = 0
    shares_experts: bool = False
    step_tokens: float = 1.0

    @property
    def key(self) -> tuple[str, int]:
        return (self.name, self.dp_rank)

    @property
    def group(self) -> Group:
        return group_of((self.name, self.dp_rank), self.shares_experts)

    @property
    def requests(self) -> int:
        """Requests on the worker: published and corrected, or our own count without a reading."""
        return self.inflight if self.load is None else self.load.requests


@dataclass(frozen=True, slots=True)
class RequestView:
    """What is known of a request. After the prefill, `prompt_tokens` is exact.

    `blocks` are chained hashes of the prompt's leading blocks (block i covers blocks 0..i), filled
    only for a policy that needs `blocks`. `signature` is a unit float32 vector [D] of the experts
    that the prefill used, or the words that say why there is none. `label` is the client's own name
    for the kind of request (a domain), where it gave one. `max_new_tokens` and `min_new_tokens`
    bound what it may generate, 0 where it does not say; who ignores the end of the text has both
    equal. `user` and `prompt_hash` (the same for equal prompts) are None where no policy asked for
    them. `now` is the
    caller's monotonic time in seconds: a value, so that a recorded run can be played again.
    `request_class`: its class.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    blocks: tuple[int, ...] = ()
    user: str | None = None
    signature: np.ndarray | str | None = None
    label: str | None = None
    max_new_tokens: int = 0
    min_new_tokens: int = 0
    prompt_hash: int | None = None
    now: float = 0.0
    request_class: RequestClass = RequestClass.STANDARD

    @property
    def best_effort(self) -> bool:
        """Whether it gives way to all that is not."""
        return self.request_class == _BEST_EFFORT

    @property
    def urgent(self) -> bool:
        """Whether best-effort work is stopped for it."""
        return self.request_class == _URGENT


@dataclass(frozen=True, slots=True)
class Decision:
    """`index` into the sequence of workers that was given; `reason` for logs and tests."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What a policy wants from its home beside loads; each home reads it before it makes a view.

    Of each request: `blocks`, `user`, `hash` (`RequestView.prompt_hash`), `signature`. `pool`: it
    assigns in rounds (`toolkit.policies.rounds.assign.Assigner`). To be told of what is in flight
    (`Policy.follow`): `lengths`, the tokens and ends; `inflight_signatures`, whose signatures are
    where.
    """

    blocks: bool = False
    user: bool = False
    hash: bool = False
    signature: bool = False
    pool: bool = False
    lengths: bool = False
    inflight_signatures: bool = False

    def __or__(self, other: Needs) -> Needs:
        """What the two need together."""
        return Needs(*(getattr(self, f.name) or getattr(other, f.name) for f in fields(Needs)))

    @property
    def following(self) -> bool:
        """Whether it is to be told of what is in flight."""
        return self.lengths or self.inflight_signatures


@dataclass(frozen=True, slots=True)
class Refits:
    """Centroids that a policy's home is to fit anew by the clock while requests come: every
    `every_s` seconds, on the signatures of the last `window_s` (`toolkit.signatures.online`)."""

    every_s: float
    window_s: float


def group_of(key: tuple[str, int], shares_experts: bool) -> Group:
    """The group of a rank. With DP attention the ranks of a server take every step together, and
    its experts are those of all their requests: these share their experts. Other DP ranks have a
    whole model each."""
    return (key[0], None) if shares_experts else key


def group_count(ranks: int, share_experts: bool) -> int:
    """Groups of a server with so many DP ranks: as many centroids it has."""
    return 1 if share_experts else ranks


def one_group(workers: Sequence[WorkerView]) -> bool:
    """Whether several ranks are healthy and all of them share their experts: then no place among
    them is better by experts than another."""
    healthy = [worker for worker in workers if worker.healthy]
    if len(healthy) < 2 or not healthy[0].shares_experts:
        return False
    name = healthy[0].name
    return all(each.name == name and each.shares_experts for each in healthy)


def healthy_indices(workers: Sequence[WorkerView]) -> list[int]:
    return [index for index, worker in enumerate(workers) if worker.healthy]
