"""Prompts of exact lengths for traces that record only lengths and shared prefixes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.bench.errors import BenchError
from toolkit.bench.traces import TraceRow


@dataclass
class TokenPool:
    """Real text as one long run of token ids; blocks are cut out of it.

    Token ids drawn at random would send a MoE model's router to places that no text reaches, so
    blocks are slices of real prompts. A block depends on its key alone: requests that name the
    same block share it.
    """

    tokens: Sequence[int]
    _blocks: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.tokens) < 2:
            raise BenchError("too little text to make synthetic prompts from")

    def block(self, key: str, size: int) -> tuple[int, ...]:
        """`size` token ids, the same ones for the same key."""
        known = self._blocks.get((key, size))
        if known is None:
            seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
            start, step = seed % len(self.tokens), len(self.tokens)
            # The first tokens carry the key itself, so that two keys never begin alike even when
            # their slices overlap: prefix hits happen only where the trace has them.
            mark = [self.tokens[(seed >> shift) % step] for shift in (8, 20, 32, 44)]
            body = (self.tokens[(start + offset) % step] for offset in range(size))
            known = (*mark, *body)[:size]
            self._blocks[(key, size)] = known
        return known

    def prompt(self, row: TraceRow, index: int, seed: int) -> tuple[int, ...]:
        """`row.input_tokens` ids: its shared blocks, then a tail that only request `index` has."""
        ids: list[int] = []
        for hash_id in row.hash_ids:
            if len(ids) >= row.input_tokens:
                break
            ids.extend(self.block(f"shared-{seed}-{hash_id}", row.block))
        if len(ids) < row.input_tokens:
            ids.extend(self.block(f"own-{seed}-{index}", row.input_tokens - len(ids)))
        return tuple(ids[: row.input_tokens])
