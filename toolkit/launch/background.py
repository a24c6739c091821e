"""Run slow questions (HTTP probes) beside the supervisor's loop and wake it with the answers."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

Answer = Callable[[Any], None]


class Background:
    """Daemon threads for questions, a pipe to wake a selector, a queue of answers.

    Answers (and failures, as the exception object) are delivered by `deliver` in the loop's own
    thread, so that the loop's state needs no lock.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._answers: queue.SimpleQueue[tuple[Answer, Any]] = queue.SimpleQueue()

    def fileno(self) -> int:
        """Readable when there is something to deliver (or after `wake`)."""
        return self._read

    def ask(self, question: Callable[[], Any], answer: Answer) -> None:
        """Call `question()` in a thread; `answer(result or exception)` runs in `deliver`."""

        def work() -> None:
            try:
                result: Any = question()
            except Exception as error:
                result = error
            self._answers.put((answer, result))
            self.wake()

        try:
            threading.Thread(target=work, daemon=True, name="toolkit-probe").start()
        except RuntimeError as error:  # no memory or processes for a thread now
            self._answers.put((answer, error))
            self.wake()

    def wake(self) -> None:
        """Make `fileno` readable. Safe in a signal handler."""
        with contextlib.suppress(OSError, ValueError):  # full: awake already; closed: over
            os.write(self._write, b"x")

    def deliver(self) -> None:
        """Hand out every answer that has come."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass
        while True:
            try:
                answer, result = self._answers.get_nowait()
            except queue.Empty:
                return
            answer(result)

    def close(self) -> None:
        """Close the pipe; late answers are dropped."""
        read, write = self._read, self._write
        self._read = self._write = -1
        os.close(read)
        os.close(write)
