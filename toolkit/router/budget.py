"""How much memory clients' requests may take in the router, and what one is charged for.

A request is charged for what it holds while it is read, parsed, queued and run: at first the bytes
that have come (not those announced), then `weight` of what became of them. The sum of all charges
is at most `max_body_total_mib`; who wants more gets 503 with Retry-After, nobody waits for it.
Requests above `SMALL` share three quarters of it, so that large ones leave room for ordinary ones.
What is kept of a stream, so that another worker can go on with it, is charged as it grows
(`toolkit.router.stream_memory`); where there is no room for it the stream goes on and it is let go.

The memory of the router as a whole is then at most

    its own (some 100 MiB)  +  max_body_total_mib  +  max_connections x READ_BUFFER x 4
    + answers that do not stream, ANSWER_MAX each (`toolkit.router.upstream`)
    + the parsing processes, LARGE_MIB and SMALL_MIB for each but one (`toolkit.router.parse_job`)

and that of the kernel for answers that clients do not read, max_connections x SEND_BUFFER x 2
(`toolkit.router.listener`),

and in practice far less: a connection without a body holds some 6 KiB.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from toolkit.router.errors import ApiError

MIB = 2**20
SMALL = MIB
"""Bytes; a request that is charged for more is a large one."""
VALUE_BYTES = 72
"""The most that one JSON value takes as a Python object, text apart (an empty dict in a list)."""
_MARKS = b",:[{"
LARGE_PER_S = 64 * MIB
"""Bytes a second that are read of all large bodies together. Each turn of the loop would else take
128 KiB and more from every one of them, and streams wait for that. Parsing them is no faster."""


def values(raw: bytes) -> int:
    """At most so many JSON values are in `raw`: each has one of these characters before it."""
    return len(raw) - len(raw.translate(None, _MARKS)) + 1


def weight(raw: bytes, count: int) -> int:
    """Bytes of memory that a body takes as Python objects, at most: `count` values and their text.

    A text is stored with 1, 2 or 4 bytes a character, as its widest character needs, and once
    more in UTF-8 as soon as it has been written out.
    """
    wide = 1 if raw.isascii() and b"\\u" not in raw else 5
    return wide * len(raw) + VALUE_BYTES * count


class HeldElsewhere(Protocol):
    """Bytes of requests that other processes of this router hold of the same memory."""

    @property
    def held(self) -> int: ...


class NothingElsewhere:
    """This process is all of the router."""

    held = 0


class Budget:
    """The charges of all requests."""

    def __init__(self, most: int, elsewhere: HeldElsewhere | None = None) -> None:
        self.most = most
        self._elsewhere = elsewhere or NothingElsewhere()
        self.held = 0
        self.peak = 0
        self._read_until = 0.0

    def pause_s(self, size: int, now: float) -> float:
        """How long whoever has just read `size` bytes of a large body is to wait before it reads
        on, so that all of them keep to LARGE_PER_S. `now`: monotonic."""
        begin = max(now, self._read_until)
        self._read_until = begin + size / LARGE_PER_S
        return self._read_until - now

    def open(self) -> Charge:
        return Charge(self)

    def hold(self, size: int) -> None:
        """Charge `size` more bytes that are held already."""
        self.held += size
        self.peak = max(self.peak, self.held)

    def has_room(self, whole: int) -> bool:
        """Whether all that is held now is within what requests of `whole` bytes may take."""
        return self.held + self._elsewhere.held <= (
            self.most if whole <= SMALL else self.most * 3 // 4
        )

    def add(self, size: int, whole: int) -> None:
        """Charge `size` more bytes to a request that then holds `whole`.

        Raises:
            ApiError: 503 with Retry-After, 413 when there is never so much room; nothing was
                charged.
        """
        limit = self.most if whole <= SMALL else self.most * 3 // 4
        if size > 0 and whole > limit:
            raise ApiError(
                413,
                f"This request takes {whole / MIB:.0f} MiB of memory, all its parts together; the "
                f"router has {limit / MIB:.0f} MiB for requests. Send several smaller ones.",
            )
        held = self.held + self._elsewhere.held
        if size > 0 and held + size > limit:
            raise ApiError(
                503,
                f"The router holds {held / MIB:.0f} MiB of requests, and takes no more of "
                f"this size now (limit {limit / MIB:.0f} MiB). Try again.",
                retry_after=2,
            )
        self.hold(size)


class Charge:
    """One request's charge; `with budget.open() as charge` gives all of it back."""

    __slots__ = ("_budget", "_over", "bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._over = False
        self.bytes = 0

    def hold(self, size: int) -> bool:
        """It holds `size` bytes more (below 0: less), whether or not there is room for them: False
        where there is none. Of a request that is over nothing counts."""
        if self._over:
            return True
        self._budget.hold(size)
        self.bytes += size
        return size <= 0 or self._budget.has_room(self.bytes)

    def grow(self, size: int) -> None:
        """ApiError as `Budget.add`."""
        self._budget.add(size, self.bytes + size)
        self.bytes += size

    def pause_s(self, size: int, now: float) -> float:
        """As `Budget.pause_s`; 0 while this request is a small one."""
        return self._budget.pause_s(size, now) if self.bytes > SMALL else 0.0

    def become(self, size: int) -> None:
        """From now on it holds `size` bytes in all. ApiError as `Budget.add`."""
        self._budget.add(size - self.bytes, size)
        self.bytes = size

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._budget.hold(-self.bytes)
        self.bytes = 0
        self._over = True
