"""What a forward of this scheduler usually takes, for those who ask whether one takes too long."""

from __future__ import annotations

FADE = 0.98
"""What a slow forward leaves behind of itself with every later one of its kind."""


class UsualTimes:
    """The slowest forward of late, of each kind. Pure: seconds in, seconds out.

    A decode step takes about as long as the others; a prefill takes its time by the token. On a
    GPU (`shapes`) the first forward of a size may compile kernels, so it is not known by others:
    sizes are told apart by powers of two.
    """

    def __init__(self, shapes: bool) -> None:
        self._shapes = shapes
        self._slowest: dict[bool, float] = {}
        """Seconds a step (of decode: True), or a token."""
        self._seen: set[tuple[bool, int]] = set()

    def expected(self, decode: bool, tokens: int) -> float:
        """Seconds; 0 where nothing like it has run yet."""
        if self._shapes and (decode, tokens.bit_length()) not in self._seen:
            return 0.0
        return self._slowest.get(decode, 0.0) * (1 if decode else max(1, tokens))

    def took(self, decode: bool, tokens: int, seconds: float) -> None:
        """A forward has ended."""
        each = seconds if decode else seconds / max(1, tokens)
        known = (decode, tokens.bit_length()) in self._seen
        self._seen.add((decode, tokens.bit_length()))
        if self._shapes and not known:  # it may have compiled something
            self._slowest.setdefault(decode, each)
            return
        self._slowest[decode] = max(each, FADE * self._slowest.get(decode, 0.0))

    @property
    def step_s(self) -> float:
        """Of a decode step; 0 before the first."""
        return self._slowest.get(True, 0.0)
