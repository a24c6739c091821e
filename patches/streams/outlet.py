"""One listener's end of a stream: a socket to which any thread may write, and none ever waits."""

import socket
from collections import deque
from threading import Lock

MAX_BACKLOG, MAX_BACKLOG_BYTES = 10_000, 64 * 2**20
"""Lines, and bytes of them, that a listener may leave unread before it is cut off: it would act on
stale events. (The longest lines are signatures, some hundred KiB.)"""


class Outlet:
    """Lines for one listener, as chunks of an HTTP/1.1 response whose head somebody else has sent.

    Until `open` they wait. Then each goes to the socket from the thread that brings it; what the
    socket does not take waits for `flush`.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        """Bytes that wait."""
        self._socket: socket.socket | None = None
        self._closed = False

    def put(self, line: bytes) -> bool:
        """Whether some of it waits for `flush` now."""
        with self._lock:
            if self._closed:
                return False
            chunk = b"%x\r\n%b\r\n" % (len(line), line)
            self._waiting.append(chunk)
            self._size += len(chunk)
            if len(self._waiting) > MAX_BACKLOG or self._size > MAX_BACKLOG_BYTES:
                self._cut()
                return False
            return self._send()

    def offer(self, line: bytes, most: int) -> bool:
        """As `put`, unless so many bytes would wait: then it is left out, and False comes back.
        Whether it was taken."""
        with self._lock:
            if self._closed or self._size + len(line) > most:
                return False
        self.put(line)
        return True

    def open(self, taken: socket.socket) -> bool:
        """The socket is the outlet's from now on (one that does not block); as `put`."""
        with self._lock:
            self._socket = taken
            if self._closed:
                self._cut()
                return False
            return self._send()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        with self._lock:
            self._send()

    def waits_on(self) -> int | None:
        """The descriptor that must take more before `flush` helps; None: nothing waits."""
        with self._lock:
            return self._socket.fileno() if self._socket is not None and self._waiting else None

    def close(self) -> None:
        """No more lines. The listener's connection ends with whoever else holds it."""
        with self._lock:
            self._closed = True
            self._forget()
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _send(self) -> bool:
        while self._socket is not None and self._waiting:
            try:
                sent = self._socket.send(self._waiting[0])
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                self._cut()
                return False
            self._size -= sent
            if sent < len(self._waiting[0]):
                self._waiting[0] = self._waiting[0][sent:]
            else:
                self._waiting.popleft()
        return False

    def _forget(self) -> None:
        self._waiting.clear()
        self._size = 0

    def _cut(self) -> None:
        """End the connection, for the others who hold it too."""
        self._closed = True
        self._forget()
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is gone already
            self._socket.close()
            self._socket = None
