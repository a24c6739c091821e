"""Two clients of `hostile`: one that reads a stream, and one that sends what is hostile."""

import http.client
import json
import threading
from bisect import bisect_left
from time import monotonic
from types import TracebackType
from typing import Self

TOKENS = 10_000_000
WAIT_LIMIT_S = 120.0


class Stream:
    """`with Stream(port) as stream:` reads a stream in a thread and keeps when its tokens came."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_LIMIT_S)
        self._times: list[float] = []
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        body = json.dumps({"prompt": "a stream", "max_tokens": TOKENS, "stream": True})
        self._connection.request(
            "POST", "/v1/completions", body, {"Content-Type": "application/json"}
        )
        self._answer = self._connection.getresponse()
        if self._answer.status != 200:
            raise RuntimeError(f"the stream got {self._answer.status}")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._thread.join()
        self._connection.close()

    def _read(self) -> None:
        try:
            while self._answer.read1(65536):
                self._times.append(monotonic())
        except (OSError, http.client.HTTPException):
            pass

    @property
    def count(self) -> int:
        return len(self._times)

    def gap_ms(self, begin: float, end: float) -> float:
        """The longest time without a token that overlaps these moments; NaN when it has ended."""
        times = list(self._times)
        if not times or times[-1] < end:
            return float("nan")
        first = max(1, bisect_left(times, begin))
        last = min(len(times) - 1, bisect_left(times, end))
        return max(
            (times[at] - times[at - 1] for at in range(first, last + 1)), default=0.0
        ) * 1e3  # fmt: skip


def send(port: int, path: str, body: bytes) -> tuple[int, str]:
    """Status and answer; 0 for a connection that ended without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_LIMIT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()
