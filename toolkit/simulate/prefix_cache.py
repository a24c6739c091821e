"""Which prompt blocks a prefill worker still has: least recently used ones leave first."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """KV tokens of finished prompts, by chained hashes of their blocks (`RequestView.blocks`).

    A chain is touched from its end to its beginning, so that of two blocks of a chain the later one
    leaves first and no block is left without those before it.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self.tokens = 0

    def match(self, blocks: Sequence[int]) -> int:
        """Tokens of the longest beginning that is here; it counts as used now."""
        known = 0
        for block in blocks:
            if block not in self._blocks:
                break
            known += 1
        for block in reversed(blocks[:known]):
            self._blocks.move_to_end(block)
        return sum(self._blocks[block] for block in blocks[:known])

    def add(self, blocks: Sequence[int], size: int) -> None:
        """The prompt's blocks of `size` tokens are here now."""
        for block in reversed(blocks):
            if block in self._blocks:
                self._blocks.move_to_end(block)
            else:
                self._blocks[block] = size
                self.tokens += size

    def shrink(self, tokens: int) -> None:
        """Give up blocks until no more than so many tokens are left."""
        while self.tokens > tokens and self._blocks:
            _, size = self._blocks.popitem(last=False)
            self.tokens -= size
