"""What a forward of this scheduler usually takes, for those who ask whether one takes too long."""

FADE = 0.98
"""What a slow forward leaves behind of itself with every later one of its kind and size."""


class UsualTimes:
    """The slowest forward of late, by kind and size. Pure: seconds in, seconds out.

    Sizes are told apart by powers of two: tokens of a prefill, requests of a decode step. A size
    that has not run takes no longer than the next larger one that has, and a larger one than all
    takes its time by the token. On a GPU (`shapes`) the first forward of a size may compile
    kernels: nothing is expected of it, and it teaches nothing.
    """

    def __init__(self, shapes: bool) -> None:
        self._shapes = shapes
        self._slowest: dict[tuple[bool, int], float] = {}
        self._seen: set[tuple[bool, int]] = set()

    def expected(self, decode: bool, tokens: int) -> float:
        """Seconds; 0 where nothing like it has run yet."""
        size = tokens.bit_length()
        if self._shapes and (decode, size) not in self._seen:
            return 0.0
        sizes = [each for kind, each in self._slowest if kind is decode]
        larger = min((each for each in sizes if each >= size), default=None)
        if larger is not None:
            return self._slowest[decode, larger]
        if not sizes:
            return 0.0
        largest = max(sizes)
        return self._slowest[decode, largest] * 2.0 ** (size - largest)

    def took(self, decode: bool, tokens: int, seconds: float) -> None:
        """A forward has ended."""
        key = decode, tokens.bit_length()
        if self._shapes and key not in self._seen:
            self._seen.add(key)
            return
        self._slowest[key] = max(seconds, FADE * self._slowest.get(key, 0.0))

    @property
    def step_s(self) -> float:
        """The slowest decode step of any size; 0 before the first."""
        return max((took for (decode, _), took in self._slowest.items() if decode), default=0.0)
