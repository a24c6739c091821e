"""What a decode rank does with what came while a step runs."""

from tests.sglang_python import found_by

CODE = """
import json
from types import SimpleNamespace
import msgspec, time, zmq
from sglang.srt.managers.io_struct import AbortReq, TokenizedGenerateReqInput
from patches.pd import early_place
from patches.scheduler_state import current

def Request(rid):
    needed = [f.name for f in msgspec.structs.fields(TokenizedGenerateReqInput) if f.required]
    return TokenizedGenerateReqInput(**dict.fromkeys(needed) | {"rid": rid})

def Abort(rid): return AbortReq(rid=rid)

context = zmq.Context()
pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")

class Receiver:
    # As SGLang's: all that is there, in order.
    recv_from_tokenizer = pull
    def pull(self):
        came = []
        while pull.poll(0):
            came.append(pull.recv_pyobj())
        return came
    def _pull_raw_reqs(self): return early_place._kept_first(Receiver.pull, self)
    def unwrap_pickle_wrapper(self, requests): assert requests

class Scheduler:
    def __init__(self):
        self.request_receiver = Receiver()
        self.taken, self.moved = [], []
        self.retracted_queue = []
        self.disagg_decode_prealloc_queue = self
        self.disagg_decode_transfer_queue = self.moved
    def process_input_requests(self, requests): self.taken += [each.rid for each in requests]
    def pop_preallocated(self): return [f"place of {self.taken[-1]}"], []

def send(*messages):
    for message in messages:
        push.send_pyobj(message)
    pull.poll(1000)
    time.sleep(0.05)

found = {}
rank = Scheduler()
early_place.look(rank)
found["nobody"] = (list(rank.taken), list(rank.moved))
send(Request("a"), Request("b"))
early_place.look(rank)
found["two"] = (list(rank.taken), list(rank.moved))
send(Request("c"), Abort("a"), Request("d"))
early_place.look(rank)
send(Request("e"))
early_place.look(rank)
found["behind an abort"] = (list(rank.taken), list(rank.moved))
send(Request("f"))
found["the loop"] = [each.rid for each in rank.request_receiver._pull_raw_reqs()]
found["again"] = [each.rid for each in rank.request_receiver._pull_raw_reqs()]
rank.retracted_queue = ["somebody"]
send(Request("g"))
early_place.look(rank)
found["after retracted ones"] = (rank.taken[-1], list(rank.moved))

class Done:
    def __init__(self, after): self.left = after
    def query(self):
        self.left -= 1
        if self.left == 3:
            send(Request("h"))
        return self.left < 0

order = []
def process(scheduler, batch, result): order.append((scheduler.taken[-1], result.copy_done.left))
rank.retracted_queue = []
for on_gpu in (False, True):
    current().get(early_place.EarlyState).on_gpu = on_gpu
    early_place._look_while_it_computes(process, rank, None, SimpleNamespace(copy_done=Done(6)))
early_place._look_while_it_computes(
    lambda *given: order.append("no event"), rank, None, SimpleNamespace()
)
found["gpu"] = order
print(json.dumps(found))
"""


def test_requests_get_places_and_nothing_overtakes_what_is_not_one() -> None:
    found = found_by(CODE)
    assert found == {
        "nobody": [[], []],
        "two": [["a", "b"], ["place of b"]],
        # `d` and `e` wait behind the abort, which is the loop's.
        "behind an abort": [["a", "b", "c"], ["place of b", "place of c"]],
        "the loop": ["a", "d", "e", "f"],
        "again": [],
        "after retracted ones": ["g", ["place of b", "place of c"]],
        # On a GPU it looks until the result is there, elsewhere not at all.
        "gpu": [["g", 6], ["h", -1], "no event"],
    }
