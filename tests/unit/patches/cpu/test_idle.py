"""Schedulers that compute nothing, with SGLang's real sleeper on a real socket."""

from tests.sglang_python import found_by

CODE = """
import json, threading, time
from types import SimpleNamespace
import zmq
from sglang.srt.managers.scheduler_components.idle_sleeper import IdleSleeper
from patches.cpu import idle
from patches.dp import layout
from patches.pd.early_send import ParkedState
from patches.scheduler_state import current

context = zmq.Context()
push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
pull.bind("inproc://requests")
push.connect("inproc://requests")
sleeper = IdleSleeper([pull])
inflight, waiting, bootstrap = [], [], SimpleNamespace(queue=[])
housekeeping = []

def rounds(count, fully_idle, sleeper, last_batch=None, scheduler=None, together=False):
    if scheduler is None:  # one that has just started
        scheduler = SimpleNamespace(idle_sleeper=sleeper)
        current().keep(idle.LastComputed())
    layout.together = lambda parallel: together
    scheduler.disagg_prefill_inflight_queue = inflight
    scheduler.waiting_queue, scheduler.disagg_prefill_bootstrap_queue = waiting, bootstrap
    scheduler.is_fully_idle, scheduler.last_batch = lambda: fully_idle, last_batch
    began = time.monotonic()
    for _ in range(count):
        idle._on_idle(housekeeping.append, scheduler)
    return time.monotonic() - began

found = {
    "transferring": rounds(100, False, sleeper) >= 0.1,
    "idle": rounds(100, True, sleeper) < 0.1,  # SGLang itself has slept
    "computing": rounds(100, False, sleeper, last_batch="a batch") < 0.1,
    "no sleeper": rounds(100, False, None) < 0.1,
    "together, idle": rounds(40, True, None, together=True) >= 0.2,
    "together, transferring": rounds(40, False, None, together=True) >= 0.04,
    "together, computing": rounds(40, True, None, "a batch", together=True) < 0.2,
}
inflight = [SimpleNamespace(bootstrap_room=room) for room in (1, 2)]
current().get(ParkedState).by_room.update({1: None, 2: None, 3: None})
found["parked"] = rounds(10, False, sleeper) >= 0.1
waiting = ["a prompt"]
found["a prompt waits"] = rounds(10, False, sleeper) < 0.1
waiting, bootstrap.queue = [], ["a room"]
found["a room waits"] = rounds(10, False, sleeper) < 0.1
bootstrap.queue = []
del current().get(ParkedState).by_room[2]
found["one is sent"] = rounds(10, False, sleeper) < 0.1
idle.PAUSE_MS, idle.AWAKE_S = 20_000, 3600.0
busy = SimpleNamespace(idle_sleeper=sleeper)
rounds(1, False, sleeper, "a batch", busy)
found["just computed"] = rounds(100, False, sleeper, None, busy) < 10
idle.AWAKE_S = 0.0
threading.Timer(0.2, push.send, [b"a request"]).start()
found["woken"] = 0.1 < rounds(1, False, sleeper) < 10
found["housekeeping"] = len(housekeeping)
print("say", json.dumps(found))
"""


def test_they_sleep_until_a_request_comes_and_while_there_is_nothing_to_compute() -> None:
    found = found_by(CODE)
    assert found == {
        "transferring": True,
        "idle": True,
        "computing": True,
        "no sleeper": True,
        "together, idle": True,
        "together, transferring": True,
        "together, computing": True,
        "parked": True,
        "a prompt waits": True,
        "a room waits": True,
        "one is sent": True,
        "just computed": True,
        "woken": True,
        "housekeeping": 662,
    }
