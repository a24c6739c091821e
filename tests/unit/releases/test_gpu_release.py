"""What differs in the release of the GPU checks, on SGLang's own classes of that release."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.gpu.packing.wanted import SGLANG
from tests.releases import fetch
from tests.sglang_python import CPU_ENVIRONMENT, PROJECT
from toolkit.contract.variables import WAITING_VARIABLE

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300), pytest.mark.touched("releases")]

CODE = r"""
import json, os
from array import array
from types import SimpleNamespace
from patches.stubs import put_on_path
put_on_path()
import patches
patches.register()
import torch
from patches.dp import layout, load_count
from patches.flags import model_config, resolve_flags, resolved_view, understood
from patches.http import worker_key
from patches.kv_row import kv_row, physical
from patches.pd import waiting_queue
from patches.streams import event_stream
from sglang.srt.entrypoints import http_server
from sglang.srt.managers import io_struct
from sglang.srt.managers.schedule_batch import Req, ReqKvInfo
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, prepare_server_args
from sglang.srt.state_capturer.base import BaseHostCache
from toolkit.embedded import model_path

found = {}
argv = ["--model-path", str(model_path()), "--device", "cpu", "--attention-backend", "torch_native",
        "--dp", "2", "--tp", "2", "--enable-dp-attention"]
backup = ["--disaggregation-decode-retraction-backup"]
found["understood"] = understood([*argv, *backup, "cpu_tensor", "--port", "1"])[len(argv):]
found["not dropped"] = understood([*backup, "host_pool"])
server_args = prepare_server_args(argv)
resolve_flags(server_args)
view = resolved_view(server_args)
found["ranks"] = layout.of_server(server_args), layout.ranks(view), layout.together(view)
found["rank"] = [layout.rank(SimpleNamespace(ps=SimpleNamespace(dp_rank=n))) for n in (None, 1)]
model = model_config(server_args)
found["model"] = model.hf_text_config.num_hidden_layers, event_stream._recurrent(model)

req = Req("r", "", array("q", [1, 2]), SamplingParams(max_new_tokens=4))
found["rows"] = [kv_row(req)]
req.req_pool_idx, req.kv = 7, ReqKvInfo(kv_allocated_len=2, swa_evicted_seqlen=0)
found["rows"].append(kv_row(req))
slots = torch.arange(3)
allocator = TokenToKVPoolAllocator.__new__(TokenToKVPoolAllocator)
found["same slots"] = physical(allocator, slots) is slots
cache = BaseHostCache(4, 2, 2, name="x")
found["host cache"] = list(cache.buffer.shape), cache.buffer.is_pinned()

kind = io_struct.TokenizedGenerateReqInput
one = kind(**dict.fromkeys(kind.__struct_fields__))
several = io_struct.BatchTokenizedGenerateReqInput(batch=[one, one, one])
order = io_struct.FlushCacheReqInput()
found["received"] = [load_count._requests_in(object(), each) for each in (one, several, order)]

given = []
os.environ["TOOLKIT_WORKER_KEY"] = "secret"
around = lambda *args, **named: given.append((args, named))
worker_key._with_key_too(around, server_args=1, url="u", headers={"a": "b"}, ssl_verify=True)
found["warm-up"] = given

found["order"] = waiting_queue._shares_clock()
waiting_queue.refuse = lambda reason: found.__setitem__("refused", reason)
waiting_queue.check_worker(SimpleNamespace(
    disaggregation_mode="prefill", schedule_policy="fcfs", pp_size=1))
print("found:" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    path = os.pathsep.join([str(fetch.place(SGLANG)), str(PROJECT)])
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | CPU_ENVIRONMENT | {"PYTHONPATH": path, WAITING_VARIABLE: "sjf:5"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(each for each in done.stdout.splitlines() if each.startswith("found:"))
    return json.loads(line.removeprefix("found:"))


def test_flags_are_read_as_it_has_resolved_them(found: dict[str, Any]) -> None:
    assert found["ranks"] == [2, 2, True]
    assert found["rank"] == [0, 1]
    assert found["model"][0] > 1 and found["model"][1] is False


def test_a_flag_that_it_lacks_is_dropped_only_where_it_does_that_anyway(
    found: dict[str, Any],
) -> None:
    assert found["understood"] == ["--port", "1"]
    assert found["not dropped"] == ["--disaggregation-decode-retraction-backup", "host_pool"]


def test_kv_is_where_the_request_says(found: dict[str, Any]) -> None:
    assert found["rows"] == [None, 7]
    assert found["same slots"]


def test_the_capturer_starts_without_cuda(found: dict[str, Any]) -> None:
    assert found["host cache"] == [[4, 2, 2], False]


def test_requests_are_counted_and_orders_are_not(found: dict[str, Any]) -> None:
    assert found["received"] == [1, 3, 0]


def test_its_own_warm_up_has_the_key(found: dict[str, Any]) -> None:
    [(args, named)] = found["warm-up"]
    assert args == [1, "u", {"a": "b", "Authorization": "Bearer secret"}]
    assert named == {"ssl_verify": True}


def test_an_order_of_the_waiting_queue_is_refused(found: dict[str, Any]) -> None:
    assert found["order"] is False
    assert "from 0.5.20 on" in found["refused"]
