"""The stand-in for the CUDA-only `sgl_kernel`."""

import importlib.util
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from patches import stubs
from patches.stubs import CPU_STUBS


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    """The stub, loaded under another name so that a real sgl_kernel stays what it is."""
    path = CPU_STUBS / "sgl_kernel" / "__init__.py"
    spec = importlib.util.spec_from_file_location("toolkit_sgl_kernel_stub", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(
    spans=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5),
)
def test_slots_land_in_their_requests_rows(
    kernel: ModuleType, spans: list[tuple[int, int]]
) -> None:
    pool = torch.full((8, 16), -1, dtype=torch.int32)
    starts = [start for start, _ in spans]
    ends = [start + count for start, count in spans]
    slots = torch.arange(100, 100 + sum(count for _, count in spans))
    rows = list(range(len(spans)))[::-1]
    kernel.assign_req_to_token_pool_cpu(
        torch.tensor(rows), pool, torch.tensor(starts), torch.tensor(ends), slots, 16
    )
    taken = 100
    for row, (start, count) in zip(rows, spans, strict=True):
        assert pool[row, start : start + count].tolist() == list(range(taken, taken + count))
        taken += count
    assert int((pool >= 0).sum()) == taken - 100


def test_kv_rows_move_even_where_source_and_target_overlap(kernel: ModuleType) -> None:
    buffers = [torch.arange(20.0).reshape(10, 2), torch.arange(30).reshape(10, 3)]
    wanted = [buffer.clone() for buffer in buffers]
    target, source = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2])
    for buffer in wanted:
        buffer[target] = buffer[source].clone()
    kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers]),
        torch.tensor([buffer.stride(0) * buffer.element_size() for buffer in buffers]),
        target,
        source,
    )
    for buffer, expected in zip(buffers, wanted, strict=True):
        assert torch.equal(buffer, expected)


def test_a_missing_kernel_says_what_to_do(kernel: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"silu_and_mul.*device: cuda"):
        kernel.silu_and_mul(torch.ones(1))


def test_operators_of_torchvision_are_left_to_it_beside_a_cuda_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It registers them itself there, and torch ends a process that has them twice."""
    monkeypatch.setattr(stubs, "_torchvision_library", None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    stubs.declare_torchvision_operators()
    assert stubs._torchvision_library is None
