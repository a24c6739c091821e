"""Who sends a parked request's KV: the thread that hears of its decode worker, or the scheduler."""

from tests.sglang_python import found_by

CODE = """
import json, threading
from types import SimpleNamespace
import torch
from sglang.srt.disaggregation.base.conn import KVPoll
from patches.pd import early_send
from patches.scheduler_state import current

by_room = current().get(early_send.ParkedState).by_room

class Sender:
    def __init__(self, broken=False, limit=None):
        self.sent, self.broken, self.limit = [], broken, limit
    def get_max_transfer_tokens(self): return self.limit
    def pop_decode_prefix_len(self): return 4
    def init(self, pages, index): self.pages = (pages, index)
    def send(self, pages, state, num_kv_tokens):
        if self.broken:
            raise RuntimeError("no")
        self.sent.append((pages.tolist(), state, num_kv_tokens))

class Manager:
    def __init__(self): self.statuses, self.failures = [], {}
    def update_status(self, room, status): self.statuses.append(status)
    def record_failure(self, room, why): self.failures[room] = why

def park(room, **sender):
    req = SimpleNamespace(
        rid="r", bootstrap_room=room, pending_bootstrap=True, metadata_buffer_index=3,
        disagg_kv_sender=Sender(**sender),
        time_stats=SimpleNamespace(set_bootstrap_done_time=lambda: None),
    )
    slots = torch.arange(20, 30, dtype=torch.int64)
    by_room[room] = early_send.Parked(req, slots, 2)
    return req

def hear(room, status=KVPoll.WaitingForInput):
    manager = Manager()
    early_send._send_when_asked(lambda m, r, s: m.update_status(r, s), manager, room, status)
    return manager

def poll(req, status):
    asked = []
    took = early_send._find_sent(lambda *rest: asked.append(rest[2]) or "theirs", None, req, status)
    return took, req.pending_bootstrap, asked

found = {}
req = park(1)
found["nobody has asked"] = (poll(req, KVPoll.Bootstrapping), 1 in by_room)
manager = hear(1)
found["asked"] = (req.disagg_kv_sender.sent, req.disagg_kv_sender.pages, manager.statuses)
found["other ranks have not heard"] = poll(req, KVPoll.Bootstrapping)[:2]
found["found"] = poll(req, KVPoll.Success)
hear(1)
found["once"] = len(req.disagg_kv_sender.sent)

req = park(2)
found["scheduler was first"] = poll(req, KVPoll.WaitingForInput)
hear(2)
found["and sends it"] = req.disagg_kv_sender.sent

req = park(3, broken=True)
manager = hear(3)
found["failed"] = (manager.statuses, manager.failures, poll(req, KVPoll.Failed))

req = park(4)
found["aborted"] = (hear(4, KVPoll.Failed).statuses, poll(req, KVPoll.Failed))

req = park(5, limit=8)
hear(5)
found["needs segments"] = (req.disagg_kv_sender.sent, poll(req, KVPoll.WaitingForInput)[0])

both = 0
for room in range(10, 1010):
    req = park(room)
    thread = threading.Thread(target=hear, args=(room,))
    thread.start()
    theirs = poll(req, KVPoll.WaitingForInput)[0] == "theirs"
    thread.join()
    both += theirs + len(req.disagg_kv_sender.sent) != 1
found["both or none of 1000"] = both
found["left"] = len(by_room)
print("say", json.dumps(found))
"""


def test_a_request_is_sent_once_by_whoever_comes_first() -> None:
    found = found_by(CODE)
    failed, waiting = 0, 2
    assert found == {
        "nobody has asked": [["theirs", True, [1]], True],
        # Tokens 4..9 lie in slots 24..29: pages 12, 13, 14.
        "asked": [[[[12, 13, 14], [], 6]], [3, 3], [waiting]],
        "other ranks have not heard": ["theirs", True],
        "found": [True, False, []],
        "once": 1,
        "scheduler was first": ["theirs", True, [waiting]],
        "and sends it": [],
        "failed": [[waiting, failed], {"3": "RuntimeError: no"}, [True, False, []]],
        "aborted": [[failed], ["theirs", True, [failed]]],
        "needs segments": [[], "theirs"],
        "both or none of 1000": 0,
        "left": 0,
    }
