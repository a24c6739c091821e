"""The prefill hook: what a request of 1,000 prompt tokens costs, 48 layers x 8 of 128 experts.

Ours is what `patches.experts.signature` does for a request on the scheduler's thread: the forward's
rows into the signature cache, the whole prompt's rows counted, the counts packed for the wire.
Against it, in turn, the same signature from what SGLang's capturer keeps on the host: gather its
int32 rows, count them, pack. Both give the same counts, which is checked first. On the CPU all of
it is work for one thread; with `--device cuda` the thread only launches (`record_ms`).

keys: record_ms (what the scheduler's thread spends, all 48 layers in the mask), bytes_per_kv_byte
(cache against the KV pool of Qwen3-30B-A3B in bf16, whose shape this is).
More: `whole_ms` until the signature is there; `host_cache_ms` from SGLang's rows, and `ratio` of
ours (whole) to it, its interval over ten stretches of one run; `masked_` with every second layer in
the mask; `long_` with 16,000 tokens; `deepseek_bytes_per_kv_byte` (58 layers x 256 experts, MLA).
`wire`: for the embedded model and for 58 x 256, bytes of the packed counts of a prompt that uses
experts by a power law, `base64` on the wire, microseconds to pack them (`pack_us`), `of_kv` (base64
to the prompt's KV), and `lost_by_a_byte`: used experts that one byte with a scale, as it was sent
before, made zero.
"""

import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as a CPU worker runs

from tests.benchmarks.shared.common import Result, arguments, interval, percentile

LAYERS, EXPERTS, TOP_K = 48, 128, 8
TOKENS, LONG = 1_000, 16_000
SLOTS = 65_536
KV_BYTES = LAYERS * 4 * 128 * 2 * 2  # a token's keys and values: 4 heads of 128, bf16
DEEPSEEK = (58, 256, 8, 61 * 576 * 2)
EMBEDDED = (6, 48, 4, 6 * 2 * 2 * 64 * 2)
"""Layers with experts, experts, top-k, bytes of a token's KV."""
LONG_PROMPT = 8_192
STRETCHES = 10


class Case:
    """One prompt in a cache of its own, and the same ids in an array like SGLang's host cache."""

    def __init__(self, tokens: int, mask: list[int], device: str) -> None:
        import torch

        from patches.experts.signature_cache import SignatureCache

        generator = torch.Generator().manual_seed(tokens)
        scores = torch.rand((tokens, LAYERS, EXPERTS), generator=generator)
        topk = scores.topk(TOP_K, dim=2).indices.to(torch.int32)
        self.tokens, self.mask, self.device = tokens, mask, device
        self.topk = topk.to(device)
        self.slots = torch.randperm(SLOTS, generator=generator)[:tokens].to(device)
        self.cache = SignatureCache.create(SLOTS, mask, EXPERTS, TOP_K, device)
        self.host = torch.zeros((SLOTS, LAYERS, TOP_K), dtype=torch.int32)
        self.host[self.slots.cpu()] = topk
        self.host_slots = self.slots.cpu()

    def begin(self) -> Any:
        """The scheduler's part in a forward; counts on the device."""
        self.cache.record(self.slots, self.topk)
        return self.cache.count(self.slots)

    def end(self, counts: Any) -> bytes:
        """Its part when they are on the host."""
        from patches.experts.signature_state import Counted

        return Counted(["r"], [self.tokens], counts.view(1, -1)).wire()["r"].counts

    def ours(self) -> bytes:
        return self.end(self.begin().cpu())

    def other(self) -> bytes:
        """From SGLang's rows: what `get_topk` gathers, and numpy's count."""
        import numpy as np

        from toolkit.signatures.wire import pack

        rows = self.host[self.host_slots].numpy()
        if len(self.mask) < LAYERS:
            rows = rows[:, self.mask]
        rows = rows + np.arange(len(self.mask), dtype=np.int32)[None, :, None] * EXPERTS
        counts = np.bincount(rows.ravel(), minlength=len(self.mask) * EXPERTS)
        return pack(counts, self.tokens, complete=True).counts


def timed(work: Callable[[], Any], device: str) -> float:
    """Milliseconds of one call, to its end on the device."""
    import torch

    begin = time.perf_counter()
    work()
    if device != "cpu":
        torch.get_device_module(device).synchronize()
    return (time.perf_counter() - begin) * 1e3


def on_thread(case: Case) -> float:
    """Milliseconds that the scheduler's thread spends, the wait for the device left out."""
    begin = time.perf_counter()
    counts = case.begin()
    spent = time.perf_counter() - begin
    counts = counts.cpu()
    begin = time.perf_counter()
    case.end(counts)
    return (spent + time.perf_counter() - begin) * 1e3


def measure(case: Case, rounds: int) -> tuple[list[float], list[float]]:
    """Paired rounds, the order alternating: ours, other."""
    assert case.ours() == case.other(), "the two ways do not count the same"
    ours: list[float] = []
    other: list[float] = []
    for number in range(rounds):
        sides = [(ours, case.ours), (other, case.other)]
        for times, work in sides if number % 2 else sides[::-1]:
            times.append(timed(work, case.device))
    return ours, other


def skewed(layers: int, experts: int, top_k: int, tokens: int) -> Any:
    """Counts [layers, experts] of a prompt whose experts come by a power law of exponent 2, top-k
    without repeats (Gumbel), another order of the experts in each layer."""
    import numpy as np

    source = np.random.default_rng(tokens)
    counts = np.zeros((layers, experts), dtype=np.int64)
    for layer in range(layers):
        scores = -2 * np.log1p(source.permutation(experts)) + source.gumbel(size=(tokens, experts))
        chosen = np.argpartition(scores, -top_k, axis=1)[:, -top_k:]
        counts[layer] = np.bincount(chosen.ravel(), minlength=experts)
    return counts


def on_wire(shape: tuple[int, int, int, int], tokens: int) -> dict[str, float]:
    """What a signature of that many tokens takes on the wire."""
    from base64 import b64encode

    import numpy as np

    from toolkit.signatures.wire import pack

    counts = skewed(*shape[:3], tokens)
    packed = pack(counts, tokens, complete=True).counts
    times = [timed(lambda: pack(counts, tokens, True), "cpu") * 1e3 for _ in range(100)]
    scaled = np.rint(counts / max(1.0, counts.max() / 255))
    size = len(b64encode(packed))
    return {
        "bytes": len(packed),
        "base64": size,
        "of_kv": size / (shape[3] * tokens),
        "pack_us": percentile(times, 50),
        "lost_by_a_byte": int(((scaled == 0) & (counts > 0)).sum()),
        "used": int((counts > 0).sum()),
    }


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__, ("--device", {"default": "cpu", "help": "cpu or cuda"}))
    import torch

    from patches.experts.signature_cache import SignatureCache

    torch.set_num_threads(1)
    result = Result()
    rounds = 100 if options.quick else 600
    every, half = list(range(LAYERS)), list(range(0, LAYERS, 2))
    cases = {"": (TOKENS, every), "masked_": (TOKENS, half), "long_": (LONG, every)}
    for prefix, (tokens, mask) in cases.items():
        case = Case(tokens, mask, options.device)
        ours, other = measure(case, rounds if tokens == TOKENS else rounds // 10)
        result.keys[f"{prefix}whole_ms"] = percentile(ours, 50)
        result.keys[f"{prefix}host_cache_ms"] = percentile(other, 50)
        # Rounds lie too near each other to be independent: medians of ten stretches of time.
        long = len(ours) // STRETCHES
        parts = [slice(i * long, (i + 1) * long) for i in range(STRETCHES)]
        blocks = [percentile(ours[part], 50) / percentile(other[part], 50) for part in parts]
        names = ("ratio", "ratio_low", "ratio_high")
        for name, value in zip(names, interval(blocks), strict=True):
            result.keys[prefix + name] = value
        spent = [on_thread(case) for _ in range(len(ours))]
        result.keys[f"{prefix}record_ms"] = percentile(spent, 50)
        result.keys[f"{prefix}record_p99_ms"] = percentile(spent, 99)
        if not prefix:
            result.keys["bytes_per_kv_byte"] = case.cache.rows.nbytes / SLOTS / KV_BYTES
    layers, experts, top_k, kv_bytes = DEEPSEEK
    cache = SignatureCache.create(16, list(range(layers)), experts, top_k, "cpu")
    result.keys["deepseek_bytes_per_kv_byte"] = cache.rows.nbytes / 16 / kv_bytes
    result.keys["wire"] = {
        f"{name}_{tokens}": on_wire(shape, tokens)
        for name, shape in {"embedded": EMBEDDED, "58x256": DEEPSEEK}.items()
        for tokens in (200, LONG_PROMPT)
    }
    result.keys["device"] = options.device
    result.emit(2 * rounds * 2)


if __name__ == "__main__":
    main()
