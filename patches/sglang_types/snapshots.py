"""What the ranks of a server say of their load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Snapshot(Protocol):
    """SGLang's `LoadSnapshot` with what `patches.dp.load_count` adds: `received`, the requests that
    the rank has taken from its socket since it started; -1 where nobody counts. The time is the
    rank's wall clock, seconds."""

    @property
    def timestamp(self) -> float: ...

    @property
    def dp_rank(self) -> int: ...

    @property
    def num_running_reqs(self) -> int: ...

    @property
    def num_waiting_reqs(self) -> int: ...

    @property
    def num_waiting_uncached_tokens(self) -> int: ...

    @property
    def num_used_tokens(self) -> int: ...

    @property
    def num_total_tokens(self) -> int: ...

    @property
    def max_total_num_tokens(self) -> int: ...

    @property
    def max_running_requests(self) -> int: ...

    @property
    def received(self) -> int: ...


class SnapshotReader(Protocol):
    """SGLang's reader of the snapshots in shared memory. A part of it is for some releases only."""

    def read(self, dp_rank: int) -> Snapshot | None: ...

    def read_all(self) -> Sequence[Snapshot]: ...
