"""What was sent of a move is known when its thread is done with it, and not before."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from patches.move.traffic import MoveTraffic, Observed


@dataclass
class Chunk:
    room: int
    sent: threading.Event


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_chunk_is_on_its_way_until_its_thread_asks_for_the_next() -> None:
    traffic, queue = MoveTraffic(), SimpleQueue[Chunk | None]()
    put = Observed(queue, traffic)

    def work() -> None:
        taken = Observed(queue, traffic)
        while (chunk := taken.get()) is not None:
            chunk.sent.wait(30)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    first, second, other = (Chunk(room, threading.Event()) for room in (7, 7, 8))
    for chunk in (first, second, other):
        put.put(chunk)
    assert traffic.in_flight(7) and traffic.in_flight(8) and not traffic.in_flight(9)
    assert traffic.done_at(7) == 0.0
    first.sent.set()
    until(lambda: traffic.done_at(7) > 0.0)
    assert traffic.in_flight(7)  # the second one
    began = time.perf_counter()
    second.sent.set()
    until(lambda: not traffic.in_flight(7))
    assert began <= traffic.done_at(7) <= time.perf_counter()
    assert traffic.in_flight(8)
    traffic.forget(8)
    other.sent.set()
    put.put(None)
    thread.join(30)
    assert not thread.is_alive() and not traffic.in_flight(8)
