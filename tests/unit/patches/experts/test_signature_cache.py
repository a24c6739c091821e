"""The signature cache against plain counting: any slots, any mask, unknown rows, both widths."""

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patches.experts.signature
import patches.experts.signature_cache
from patches.base import PatchError
from patches.experts.signature import wanted_layers
from patches.experts.signature_cache import SignatureCache
from patches.experts.signature_state import SignatureState
from tests.kernels import examples

torch = pytest.importorskip("torch")

SLOTS = 400


def routed(rng: np.random.Generator, tokens: int, layers: int, experts: int, k: int) -> np.ndarray:
    """int32 [tokens, layers, k]: distinct experts for each token and layer."""
    return rng.random((tokens, layers, experts)).argsort(axis=2)[:, :, :k].astype(np.int32)


def histogram(ids: np.ndarray, layers: list[int], experts: int) -> list[int]:
    """S * E counts, and the number of tokens."""
    rows = [np.bincount(ids[:, layer].ravel(), minlength=experts) for layer in layers]
    return [*np.concatenate(rows).tolist(), len(ids)]


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    layers=st.integers(1, 7),
    experts=st.sampled_from([4, 8, 60, 255, 256, 300]),
    k=st.integers(1, 4),
    parts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    data=st.data(),
)
def test_any_order_of_recording_counts_the_same(
    seed: int, layers: int, experts: int, k: int, parts: list[int], data: st.DataObject
) -> None:
    """Chunks, reused prefixes and slots that lie anywhere: a prompt is the sum of its rows."""
    rng = np.random.default_rng(seed)
    mask = sorted(data.draw(st.sets(st.integers(0, layers - 1), min_size=1)))
    cache = SignatureCache.create(SLOTS, mask, experts, k, "cpu")
    ids = routed(rng, sum(parts), layers, experts, k)
    slots = torch.from_numpy(rng.permutation(SLOTS)[: len(ids)])
    # Something else lay in these slots before.
    cache.record(slots, torch.from_numpy(routed(rng, len(ids), layers, experts, k)))
    start = 0
    for part in parts:
        chunk = slice(start, start + part)
        # SGLang's buffer has further columns for fused shared experts.
        wide = np.concatenate([ids[chunk], np.full((part, layers, 1), experts - 1)], axis=2)
        cache.record(slots[chunk], torch.from_numpy(wide.astype(np.int32)))
        start += part
    take = data.draw(st.integers(1, len(ids)))
    counts = cache.count(slots[:take].to(torch.int32)).tolist()
    assert counts == histogram(ids[:take], mask, experts)


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    experts=st.sampled_from([4, 256, 300]),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
)
def test_prompts_that_are_counted_together_count_as_each_alone(
    seed: int, experts: int, lengths: list[int]
) -> None:
    """Also with a shared prefix, and with ids in unwritten slots, which may spill."""
    rng = np.random.default_rng(seed)
    cache = SignatureCache.create(SLOTS, [0, 2], experts, 2, "cpu")
    written = torch.from_numpy(rng.permutation(SLOTS)[:200])
    cache.record(written, torch.from_numpy(routed(rng, 200, 3, experts, 2)))
    prompts = [torch.from_numpy(rng.integers(0, SLOTS, length)) for length in lengths]
    alone = [cache.count(slots).tolist() for slots in prompts]
    assert cache.count_each(prompts).tolist() == alone
    with pytest.MonkeyPatch.context() as patch:  # as on a GPU
        patch.setattr(patches.experts.signature_cache, "BLOCK_TOKENS", 50)
        together = cache.count_together(prompts)
    assert together.tolist() == alone
    assert together.dtype == torch.int32


def test_the_work_of_a_batch_is_launched_once_for_all_its_prompts() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Launches(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += not func.is_view
            return func(*args, **(kwargs or {}))

    cache = SignatureCache.create(SLOTS, [0], 4, 1, "cpu")
    prompts = torch.arange(160).split(10)
    cache.count_together(prompts)  # the constants are made

    def launches(count: int) -> int:
        with Launches() as seen:
            assert len(cache.count_together(prompts[:count])) == count
        return int(seen.count)

    assert launches(16) == launches(1) < 16


@pytest.mark.parametrize("experts", [8, 256])
def test_what_was_not_captured_is_counted_as_unknown(experts: int) -> None:
    ids = routed(np.random.default_rng(1), 30, 3, experts, 2)
    ids[4:7, :] = -1
    cache = SignatureCache.create(SLOTS, [0, 1, 2], experts, 2, "cpu")
    slots = torch.arange(100, 130)
    cache.record(slots, torch.from_numpy(np.maximum(ids, 0)))
    bypassed = ids[4:7].copy()
    bypassed[:, :2] = 0  # of the three layers the last one's backend bypasses the capturer
    cache.record(slots[4:7], torch.from_numpy(bypassed))
    cache.forget(slots[20:22])  # loaded back from host memory
    assert cache.count(slots)[-1] == 30 - 3 - 2
    assert cache.count(torch.arange(10))[-1] == 0, "slots that nothing was written to"
    cache.record(slots, torch.from_numpy(np.maximum(ids, 0)))
    assert cache.count(slots)[-1] == 30, "a forward makes them known again"


def test_a_long_prompt_is_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches.experts.signature_cache, "BLOCK_TOKENS", 7)
    ids = routed(np.random.default_rng(2), 50, 2, 16, 4)
    cache = SignatureCache.create(64, [0, 1], 16, 4, "cpu")
    cache.record(torch.arange(50), torch.from_numpy(ids))
    assert cache.count(torch.arange(50)).tolist() == histogram(ids, [0, 1], 16)


def test_an_idle_forward_of_a_dp_rank_records_nothing() -> None:
    cache = SignatureCache.create(64, [0, 1], 16, 4, "cpu")
    cache.record(torch.zeros(0, dtype=torch.int64), torch.zeros((0, 2, 4), dtype=torch.int32))
    assert not cache.rows.any()


@pytest.mark.parametrize(
    ("layers", "experts", "k", "kv_bytes"),
    [
        (48, 128, 8, 48 * 4 * 128 * 2 * 2),  # Qwen3-30B-A3B, bf16
        (58, 256, 8, 61 * 576 * 2),  # DeepSeek-V3, bf16
    ],
)
def test_it_takes_less_than_a_hundredth_of_the_kv(
    layers: int, experts: int, k: int, kv_bytes: int
) -> None:
    cache = SignatureCache.create(16, list(range(layers)), experts, k, "cpu")
    assert cache.rows.nbytes / 16 < 0.01 * kv_bytes


@pytest.mark.parametrize(
    ("layers", "kv_bytes", "level", "share"),
    [
        (48, 48 * 4 * 128 * 2 * 2, logging.INFO, "0.40 %"),  # Qwen3-30B-A3B, bf16
        (58, 61 * 576, logging.WARNING, "1.34 %"),  # DeepSeek-V3, FP8
        (94, 94 * 1 * 128 * 2 * 2, logging.WARNING, "1.58 %"),  # Qwen3-235B-A22B, bf16, TP 4
    ],
)
def test_a_worker_says_what_the_cache_takes(
    layers: int, kv_bytes: int, level: int, share: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = SignatureCache.create(1000, list(range(layers)), 256, 8, "cpu")
    with caplog.at_level(logging.INFO, "toolkit"):
        patches.experts.signature.log_size(cache, 1000 * kv_bytes / 2**30)
        patches.experts.signature.log_size(cache, 0.0)
    (record,) = caplog.records
    assert record.levelno == level and share in record.getMessage()


def finished(prompts: list[int], ends: list[tuple[int, int]]) -> list[str]:
    """Request ids that a forward with these (prefix, run) lengths counts."""
    cache = SignatureCache.create(SLOTS, [0], 4, 1, "cpu")
    reqs = [
        SimpleNamespace(
            rid=str(n), origin_input_ids=[0] * length, kv=SimpleNamespace(req_pool_idx=n)
        )
        for n, length in enumerate(prompts)
    ]
    pool = SimpleNamespace(req_to_token=torch.zeros((len(prompts), 64), dtype=torch.int32))
    state = SignatureState(cache, SimpleNamespace(reqs=reqs, req_to_token_pool=pool))
    forward: Any = SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: True),
        extend_prefix_lens_cpu=[prefix for prefix, _ in ends],
        extend_seq_lens_cpu=[run for _, run in ends],
    )
    counted = patches.experts.signature.count_finished(state, forward)
    return [] if counted is None else counted.rids


def test_only_the_last_chunk_of_a_prompt_is_counted() -> None:
    assert finished([10, 20], [(0, 10), (0, 8)]) == ["0"]
    assert finished([20], [(8, 8)]) == []
    assert finished([20], [(16, 4)]) == ["0"]
    assert finished([20], [(19, 1)]) == ["0"], "a full prefix hit runs one token"


def test_layers_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, layers in (("3,0, 5", [0, 3, 5]), ("", []), ("7", [7])):
        monkeypatch.setenv("TOOLKIT_SIGNATURE_LAYERS", text)
        assert wanted_layers() == layers
    for text in ("all", "0,five", "-1"):
        monkeypatch.setenv("TOOLKIT_SIGNATURE_LAYERS", text)
        with pytest.raises(PatchError, match=f"{text} must be layer numbers with commas"):
            wanted_layers()
