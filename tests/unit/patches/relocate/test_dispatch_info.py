"""A placed model that hands no dispatch information to its router gets it, on a GPU."""

import pytest

from tests.sglang_python import found_by

pytestmark = pytest.mark.sglang

SCRIPT = """
import contextlib, json
from types import SimpleNamespace as Some
from unittest import mock
import torch
from patches import stubs
stubs.declare_torchvision_operators()
from patches.relocate import dispatch_info
from sglang.srt.eplb import expert_location, expert_location_dispatch
from sglang.srt import runtime_context

KNOWN = "get_global_expert_location_metadata"

table = torch.tensor([[2, 0, 1], [1, 2, 0]])
metadata = Some(
    num_layers=2, num_physical_experts=3, logical_to_rank_dispatch_physical_map=None,
    logical_to_all_physical_map=table.argsort(dim=1).unsqueeze(-1),
    logical_to_all_physical_map_num_valid=torch.ones(2, 3, dtype=torch.int64),
)
def select(**given):
    info = given.get("expert_location_dispatch_info")
    ids = torch.tensor([[0, 1], [2, 0]])
    return expert_location_dispatch.topk_ids_logical_to_physical(ids, info).tolist()

def asked(algorithm, layer, speculative=None, cpu=False, **given):
    moe = Some(ep_dispatch_algorithm=algorithm, moe_a2a_backend="none")
    exec_, spec = Some(moe=moe), Some(speculative_algorithm=speculative)
    changes = [
        (expert_location, KNOWN, metadata), (expert_location_dispatch, KNOWN, metadata),
        (expert_location_dispatch, "get_exec", exec_), (runtime_context, "get_exec", exec_),
        (runtime_context, "get_spec", spec), (dispatch_info, "on_cpu", cpu),
    ]
    with contextlib.ExitStack() as stack:
        for module, name, value in changes:
            stack.enter_context(mock.patch.object(module, name, lambda value=value: value))
        return dispatch_info.fill_in(select, layer_id=layer, **given)

print(json.dumps({
    "placed": asked("dynamic", 1), "not placed": asked(None, 1),
    "draft": asked("dynamic", 1, "NEXTN"), "cpu": asked("dynamic", 1, cpu=True),
    "beyond": asked("dynamic", 7),
}))
"""


def test_ids_follow_the_map_where_there_is_one() -> None:
    found = found_by(SCRIPT)
    plain = [[0, 1], [2, 0]]
    assert found == {
        "placed": [[2, 0], [1, 2]],
        "not placed": plain,
        "draft": plain,
        "cpu": plain,
        "beyond": plain,
    }
