"""Two halves of a batch through SGLang's own executor of two-batch overlap. A program: it prints
whether the capturer's buffer has what the layers chose, without the patch and with it."""

import os
from types import SimpleNamespace
from typing import Any

LAYERS, TOP_K, TOKENS, SPLIT, PADDED = 3, 4, 11, 4, 8


def run(cache: Any, ids: Any) -> bool:
    """`ids` [layers, tokens, top_k] are what the layers choose; each half is padded to PADDED."""
    import torch
    from sglang.srt.batch_overlap.operations import YieldOperation, execute_overlapped_operations

    cache.buffer.fill_(-1)

    def chooses(layer: int) -> Any:
        def choose(state: Any, ids: Any, **more: Any) -> Any:
            cache.capture(layer, ids[layer])
            return {"ids": ids, **more}

        return choose

    stages: list[Any] = [chooses(0)]
    for layer in range(1, LAYERS):
        stages += [YieldOperation(), chooses(layer)]
    halves = []
    for begin, end in ((0, SPLIT), (SPLIT, TOKENS)):
        part = torch.full((LAYERS, PADDED, TOP_K), 99, dtype=torch.int32)
        part[:, : end - begin] = ids[:, begin:end]
        batch = SimpleNamespace(
            tbo_parent_token_range=(begin, end),
            global_dp_buffer_len=None,
            tbo_padded_len=PADDED,
            global_num_tokens_cpu=None,
            dp_padding_mode=SimpleNamespace(is_max_len=lambda: False),
        )
        halves.append({"ids": part, "forward_batch": batch})
    execute_overlapped_operations(halves, [stages, stages], [0, 1])
    right = torch.equal(cache.buffer[:TOKENS].transpose(0, 1), ids)
    whole = torch.randint(0, 48, (TOKENS, TOP_K), dtype=torch.int32)
    cache.capture(0, whole)  # of the next batch, which has no halves
    return right and torch.equal(cache.buffer[:TOKENS, 0], whole)


def main() -> None:
    """Without, then with."""
    os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    from patches import stubs

    stubs.put_on_path()
    import torch
    from sglang.srt.batch_overlap import operations
    from sglang.srt.state_capturer.base import BaseDeviceCache

    from patches.base import install
    from patches.experts import halves

    # What a half sets for DP attention and its own attention backend, neither of which is here.
    operations.set_dp_buffer_len = lambda *_: None
    operations._resolve_tbo_child_contexts = lambda: (None, None)
    ids = torch.randint(0, 48, (LAYERS, TOKENS, TOP_K), dtype=torch.int32)
    cache = BaseDeviceCache(32, LAYERS, TOP_K, "cpu", "routed_experts")
    print("without", run(cache, ids))
    install([halves.PATCH])
    print("with", run(cache, ids))


if __name__ == "__main__":
    main()
