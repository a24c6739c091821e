"""SGLang's real DP controller with our hooks, over real sockets and snapshots; only the schedulers
behind it are played, by this test."""

import json

import pytest

from patches.base import REFUSED_EXIT_CODE
from tests.sglang_python import run_python
from toolkit.contract.variables import DP_POLICY_VARIABLE, DP_PROFILE_VARIABLE
from toolkit.resources import profiles_dir

pytestmark = pytest.mark.touched("engine")

COMMON = """
import json, os, sys, threading, time
from array import array
from types import SimpleNamespace
from patches.base import Process, enter
enter(Process.CONTROLLER)
import patches
patches.register()
"""

CONTROLLER = (
    COMMON
    + """
import tempfile, zmq
from sglang.srt.managers import load_snapshot as snapshots
from sglang.srt.managers.data_parallel_controller import DataParallelController, DPBudget
from sglang.srt.managers.data_parallel_controller import LoadBalanceMethod
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput, sock_recv, sock_send
from sglang.srt.runtime_context import publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import prepare_server_args
from patches.dp.progress import Progressed
from patches.dp.load_count import counted_snapshot
from toolkit.embedded import model_path

arguments = f"--model-path {model_path()} --device cpu --attention-backend torch_native --dp 2"
server_args = prepare_server_args([*arguments.split(), "--load-balance-method", "total_tokens"])
server_args.resolve_once()
publish(server_args, role="dp_controller")
folder = tempfile.mkdtemp()
context = zmq.Context()

def pipe(name):
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    pull.bind(f"ipc://{folder}/{name}")
    push.connect(f"ipc://{folder}/{name}")
    return push, pull

requests, inbox = pipe("requests")
ranks = [pipe(f"rank{rank}") for rank in range(2)]
writers = [snapshots.ShmLoadSnapshotWriter(f"{folder}/loads", 2, rank) for rank in range(2)]

controller = DataParallelController.__new__(DataParallelController)
controller.workers = [push for push, _ in ranks]
controller.status, controller._active_workers = [True, True], [0, 1]
controller.recv_from_tokenizer = inbox
controller.soft_watchdog = SimpleNamespace(feed=lambda: None)
controller.dp_budget, controller._last_refresh_time = DPBudget(2), 0.0
controller.refresh_load_budget_on_dispatch = True
controller.load_snapshot_reader = snapshots.ShmLoadSnapshotReader(f"{folder}/loads", 2)
controller.dispatching = controller.total_tokens_scheduler
controller.init_dispatcher()
loop = threading.Thread(target=controller.event_loop, daemon=True)

def say(**what):
    print("say", json.dumps(what))

def ask(rid, tokens, **more):
    base = dict.fromkeys(["input_text", "input_embeds", "mm_inputs", "token_type_ids",
                          "token_ids_logprob"])
    flags = {"return_logprob": False, "logprob_start_len": -1, "top_logprobs_num": 0,
             "stream": False}
    sock_send(requests, TokenizedGenerateReqInput(
        rid=rid, input_ids=array("q", range(tokens)), sampling_params=SamplingParams(),
        **base, **flags, **more))

def answer():
    "(rank, rid) of the next request that a rank gets"
    poller = zmq.Poller()
    for _, pull in ranks:
        poller.register(pull, zmq.POLLIN)
    (socket, _), *_ = poller.poll(20_000)
    return [pull for _, pull in ranks].index(socket), sock_recv(socket).rid

def publish_load(rank, received, used=0, at=None):
    writers[rank].write(counted_snapshot()(
        timestamp=at or time.time(), dp_rank=rank, received=received, num_used_tokens=used,
        num_total_tokens=used, max_total_num_tokens=8192, max_running_requests=16))
"""
)


def said(code: str, **environment: str) -> list[dict[str, object]]:
    done = run_python(code + "\nsys.stdout.flush(); os._exit(0)", **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("say ")]
    return [json.loads(line.removeprefix("say ")) for line in lines]


POLICY = """
loop.start()
publish_load(0, 0, used=3000)
publish_load(1, 0)
time.sleep(0.1)
# Rank 1 has the margin until what was sent there fills it; nothing is published meanwhile.
burst = []
for n in range(5):
    ask(f"r{n}", 1000)
for n in range(5):
    burst.append(answer())
say(burst=burst)
# A named rank is obeyed, and is load there.
ask("named", 2000, routed_dp_rank=1)
say(named=answer())
ask("after", 10)
say(after=answer())
# All have arrived and ended.
publish_load(0, 2, used=10)
publish_load(1, 5, used=500)
time.sleep(0.1)
ask("level", 10)
say(level=answer())
# Rank 0 is silent, and nearly empty by its last word; rank 1 publishes on and is fuller.
for n in range(24):
    publish_load(1, 5, used=4000 + n)
    time.sleep(0.25)
silent = []
for n in range(4):
    ask(f"s{n}", 10)
    silent.append(answer())
say(silent=silent, placed=controller.toolkit_balancer.placed,
    named=controller.toolkit_balancer.named)
"""


def test_the_policy_decides_and_a_named_rank_wins() -> None:
    burst, named, after, level, silent = said(CONTROLLER + POLICY, **{DP_POLICY_VARIABLE: "br0"})
    # Whichever socket is read first: by the order in which they were asked.
    got = {rid: rank for rank, rid in burst["burst"]}  # type: ignore[attr-defined]
    assert [got[f"r{n}"] for n in range(3)] == [1, 1, 1]
    assert {got["r3"], got["r4"]} == {0, 1}
    assert named["named"] == [1, "named"]
    assert after["after"] == [0, "after"]
    assert level["level"] == [0, "level"]
    assert [rank for rank, _ in silent["silent"]] == [1] * 4  # type: ignore[attr-defined]
    assert sum(silent["placed"]) == 11 and silent["named"] == 1  # type: ignore[call-overload]


OVER_THE_NETWORK = """
# As DP attention over several nodes has it: the ranks' only receiver is the controller.
endpoint, shm = f"ipc://{folder}/collector", f"{folder}/collected"
controller.load_snapshot_reader = snapshots.ZmqShmLoadSnapshotReader(endpoint, shm, 2)
far = [snapshots.ZmqLoadSnapshotWriter(endpoint, 2, rank) for rank in range(2)]
loop.start()
reader = snapshots.ShmLoadSnapshotReader(shm, 2)  # as the HTTP process has it

def seen(tokens):
    "Whether that is soon read of both ranks, though nobody sends a request"
    for rank, writer in enumerate(far):
        writer.write(snapshots.LoadSnapshot(
            timestamp=time.time(), dp_rank=rank, num_used_tokens=tokens))
    until = time.monotonic() + 2
    while time.monotonic() < until:
        if [each.num_used_tokens for each in reader.read_all()] == [tokens] * 2:
            return True
        time.sleep(0.01)
    return False

say(first=seen(7), then=seen(0))
"""


@pytest.mark.parametrize("policy", ["", "br0"])
def test_loads_from_other_nodes_are_received_though_nothing_is_dispatched(policy: str) -> None:
    (got,) = said(CONTROLLER + OVER_THE_NETWORK, **{DP_POLICY_VARIABLE: policy})
    assert got == {"first": True, "then": True}


SHARED = """
loop.start()
publish_load(0, 0, used=3000)
publish_load(1, 0)
time.sleep(0.1)
ask("a", 10, bootstrap_host="127.0.0.1", bootstrap_port=9, bootstrap_room=1)
policy = controller.toolkit_balancer.policy
say(got=answer(), locality=controller.toolkit_locality is not None,
    fallbacks=dict(policy.locality.counters.fallbacks))
"""


def as_decode(code: str, flags: str) -> str:
    """The same controller in a decode server with these flags."""
    begin = '"--load-balance-method", "total_tokens"'
    assert begin in code
    return code.replace(begin, f"{begin}, '--disaggregation-mode', 'decode', *'{flags}'.split()")


@pytest.mark.parametrize("attention", [True, False])
def test_among_ranks_that_share_their_experts_no_request_waits_for_its_signature(
    attention: bool,
) -> None:
    code = as_decode(CONTROLLER, "--tp 2 --enable-dp-attention" if attention else "")
    profile = str(profiles_dir() / "embedded")
    environment = {DP_POLICY_VARIABLE: "composed", DP_PROFILE_VARIABLE: profile}
    done = run_python(code + SHARED + "\nsys.stdout.flush(); os._exit(0)", **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("say ")]
    # Nobody is at that address: without DP attention the request is not held for its news.
    reason = "no centroids" if attention else "nothing heard of its prefill"
    expected = {"got": [1, "a"], "locality": not attention, "fallbacks": {reason: 1}}
    assert json.loads(line.removeprefix("say ")) == expected
    assert ("locality decides nothing here" in done.stderr) == attention


PROGRESS = """
loop.start()
publish_load(0, 0)
publish_load(1, 0)
time.sleep(0.1)
ask("a", 100)
rank, _ = answer()
lengths = controller.toolkit_balancer.policy.inflight
sock_send(requests, Progressed((("a", 7, ""),)))
time.sleep(0.2)
say(tokens=lengths.tokens(("dp", rank)))
sock_send(requests, Progressed((("a", 9, "finished"),)))
time.sleep(0.2)
say(tokens=len(lengths))
"""


def test_br_h_hears_of_tokens_over_the_socket() -> None:
    found = said(CONTROLLER + PROGRESS, **{DP_POLICY_VARIABLE: "brh@survival"})
    assert found == [{"tokens": 107.0}, {"tokens": 0}]


SGLANGS = """
controller.load_balance_method = LoadBalanceMethod.TOTAL_TOKENS
loop.start()
publish_load(0, 0, used=3000)
publish_load(1, 0)
time.sleep(0.1)
began = time.process_time()
time.sleep(1)
idle_s = time.process_time() - began
ask("a", 10)
say(got=answer(), ours=hasattr(controller, "toolkit_balancer"), sleeps=idle_s < 0.3)
"""


def test_without_a_policy_of_ours_it_is_sglangs_own_but_does_not_poll() -> None:
    expected = {"got": [1, "a"], "ours": False, "sleeps": True}
    assert said(CONTROLLER + SGLANGS, **{DP_POLICY_VARIABLE: ""}) == [expected]


COUNTED = """
from types import SimpleNamespace
from patches.base import Process, enter
enter(Process.SCHEDULER)
import patches
patches.register()
import msgspec
from sglang.srt.managers.load_snapshot import LoadSnapshot, snapshot_decoder, snapshot_encoder
from sglang.srt.managers.scheduler import Scheduler
from patches import scheduler_state
from patches.dp import load_count

class Inquirer: pass
scheduler = SimpleNamespace(_tokenized_requests=lambda req: [req] * req,
                            session_controller=SimpleNamespace(maybe_reap=lambda now: None))
counts = []
def count(number):
    try:
        Scheduler.process_input_requests(scheduler, [number])
    except AttributeError:  # what it does with them is not played
        pass
    return scheduler_state.current().get(load_count.ReceivedRequests).count
print("say", [count(1), count(0), count(3)])
plain = LoadSnapshot(timestamp=2.5, dp_rank=1, num_used_tokens=7)
tagged = load_count._say_received(lambda inquirer: plain, None)
raw = snapshot_encoder.encode(tagged)
read = msgspec.msgpack.Decoder(load_count.counted_snapshot()).decode(raw)
print("say", read.received, read.timestamp, read.dp_rank, read.num_used_tokens)
print("say", snapshot_decoder.decode(raw) == plain)
"""


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("br0", ["say [1, 1, 4]", "say 4 2.5 1 7", "say True"]),
        ("", ["say [0, 0, 0]", "say -1 2.5 1 7", "say True"]),
    ],
)
def test_a_scheduler_says_what_it_has_received(policy: str, expected: list[str]) -> None:
    done = run_python(COUNTED, **{DP_POLICY_VARIABLE: policy})
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("say ")]
    # Every other reader of the snapshot passes over the count.
    assert lines == expected


BROKEN = """
{breakage}
from patches.dp import controller_process
class Pipe:
    def send(self, report): print("ready", report)
import sglang.srt.managers.data_parallel_controller as dpc
controller_process.resolve = lambda symbol: lambda args, ports, pipe, func: pipe.send({{}})
controller_process.run(None, None, Pipe(), None)
"""


@pytest.mark.parametrize(
    ("breakage", "said"),
    [
        (
            "import sglang.srt.managers.data_parallel_controller as d\n"
            "del d.DataParallelController.total_tokens_scheduler",
            "dp_controller",
        ),
        (
            "import sglang.srt.plugins as p\np.load_plugins = lambda: None",
            "the DP controller runs without the patches: SGLang loaded no plugins",
        ),
    ],
    ids=["symbol gone", "plugins not loaded"],
)
def test_a_half_patched_controller_refuses(breakage: str, said: str) -> None:
    done = run_python(BROKEN.format(breakage=breakage))
    assert done.returncode == REFUSED_EXIT_CODE, done.stderr[-2000:]
    assert said in done.stderr.strip().splitlines()[-1]
    assert "ready" not in done.stdout


def test_an_intact_controller_reports_its_patches() -> None:
    done = run_python(BROKEN.format(breakage=""))
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("ready")]
    names = ("dp_controller", "dp_watch", "load_count_reader", "message_sockets", "private_logs")
    assert f"'toolkit_controller_patches': {names}" in line


STARTER = """
{breakage}
import patches
patches.register()
import pickle
from sglang.srt.entrypoints import engine
function = engine.run_data_parallel_controller_process
print("say", pickle.loads(pickle.dumps(function)).__module__)
"""


def test_the_child_runs_ours() -> None:
    done = run_python(STARTER.format(breakage=""))
    assert "say patches.dp.controller_process" in done.stdout, done.stderr[-2000:]


def test_a_controller_that_takes_something_else_is_refused() -> None:
    breakage = (
        "import sglang.srt.managers.data_parallel_controller as d\n"
        "d.run_data_parallel_controller_process = lambda server_args, renamed: None"
    )
    done = run_python(STARTER.format(breakage=breakage))
    assert done.returncode == REFUSED_EXIT_CODE
    assert "controller_process" in done.stderr.strip().splitlines()[-1]
