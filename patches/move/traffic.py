"""What a rank's sending threads have sent of each move, and when they were done with it."""

import threading
import time
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


@dataclass(slots=True)
class _Room:
    waiting: int = 0
    """Chunks that are not sent."""
    done_at: float = 0.0


class MoveTraffic:
    """Of all moves, by bootstrap room."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rooms: dict[int, _Room] = {}

    def queued(self, room: int) -> None:
        """A chunk is about to be given to a sending thread."""
        with self._lock:
            self._rooms.setdefault(room, _Room()).waiting += 1

    def done(self, room: int) -> None:
        """A sending thread is done with a chunk, however it ended."""
        with self._lock:
            found = self._rooms.get(room)
            if found is not None:
                found.waiting -= 1
                found.done_at = time.perf_counter()

    def in_flight(self, room: int) -> bool:
        """Whether something that was to be sent there has not been."""
        found = self._rooms.get(room)
        return found is not None and found.waiting > 0

    def done_at(self, room: int) -> float:
        """When the last chunk was sent; 0: none was."""
        found = self._rooms.get(room)
        return 0.0 if found is None else found.done_at

    def forget(self, room: int) -> None:
        """The move is over."""
        with self._lock:
            self._rooms.pop(room, None)


class Chunk(Protocol):
    """A part of a request's KV, as SGLang's manager queues it."""

    room: int


ChunkT = TypeVar("ChunkT", bound=Chunk)


class ChunkQueue(Protocol[ChunkT]):
    """SGLang's `FastQueue`."""

    def put(self, item: ChunkT | None, /) -> None: ...

    def get(self) -> ChunkT | None: ...


class Observed(Generic[ChunkT]):
    """A sending thread's queue, as whoever fills it has it, or the thread. The thread asks for the
    next chunk when it is done with the one before, and only then."""

    def __init__(self, queue: ChunkQueue[ChunkT], traffic: MoveTraffic) -> None:
        self._queue, self._traffic = queue, traffic
        self._room: int | None = None

    def put(self, chunk: ChunkT | None) -> None:
        """None ends the thread."""
        if chunk is not None:
            self._traffic.queued(chunk.room)
        self._queue.put(chunk)

    def get(self) -> ChunkT | None:
        """The next chunk, once there is one."""
        if self._room is not None:
            self._traffic.done(self._room)
        chunk = self._queue.get()
        self._room = None if chunk is None else chunk.room
        return chunk
