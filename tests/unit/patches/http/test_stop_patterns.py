"""Which pattern ends an answer, after which of its tokens, and how little is looked at for it."""

import sys
from collections.abc import Sequence

import pytest

from patches.base import PatchError
from patches.http.stop_patterns import PATCH, search
from toolkit.contract.stop_patterns import MAX_TOKENS, StopPatterns

WORDS = ["a", "b", "END", " ", "\n", "stop", "```", "x" * 300, "é"]


class Tokenizer:
    """Decodes `WORDS`, and notes how much of them."""

    def __init__(self) -> None:
        self.decoded: list[int] = []

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded.append(len(ids))
        return "".join(WORDS[each] for each in ids)


def found(patterns: list[str], ids: list[int], new: int = 1) -> tuple[str, int] | None:
    return search(StopPatterns(patterns), ids, new, Tokenizer().decode)


@pytest.mark.parametrize(
    ("patterns", "ids", "new", "expected"),
    [
        (["END"], [0, 1, 2], 1, ("END", 3)),
        (["END"], [0, 2, *[1] * 20], 1, None),  # told many steps ago
        (["b END"], [0, 1, 3, 2], 1, ("b END", 4)),
        (["x", "E.D"], [2], 1, ("E.D", 1)),
        (["^a"], [0], 1, ("^a", 1)),
        (["^a"], [1, 0], 1, None),  # SGLang: the beginning of what it looks at
        ([r"(?a)\bstop\b"], [0, 5], 1, None),
        ([r"(?a)\bstop\b"], [3, 5], 1, (r"(?a)\bstop\b", 2)),
        (["x"], [7], 1, ("x", 1)),
        (["xa"], [7, 0], 1, ("xa", 2)),
        (["é+b"], [8, 8, 1], 1, ("é+b", 3)),
        ([""], [0], 1, ("", 1)),
        # Several tokens in one step: what comes behind the match is cut off.
        (["END"], [0, 2, 1, 1], 3, ("END", 2)),
        (["bb"], [0, 1, 1, 1], 3, ("bb", 3)),
        (["a|END"], [2, 0, 1], 3, ("a|END", 1)),
        (["a$"], [1, 0, 1], 3, ("a$", 2)),
        (["b"], [1], 0, ("b", 1)),
    ],
)
def test_a_pattern_ends_an_answer(
    patterns: list[str], ids: list[int], new: int, expected: tuple[str, int] | None
) -> None:
    assert found(patterns, ids, new) == expected


def test_a_pattern_without_a_longest_match_reaches_over_many_tokens() -> None:
    fence = "```[\\s\\S]*```"
    near = [6, *[0] * (MAX_TOKENS - 2), 6]
    assert found([fence], near) == (fence, len(near))
    assert found([fence], [6, *[0] * MAX_TOKENS, 6]) is None


@pytest.mark.parametrize(("pattern", "most"), [("abc", 5), ("a*c", MAX_TOKENS + 2)])
def test_no_more_is_decoded_however_long_the_answer_is(pattern: str, most: int) -> None:
    tokenizer = Tokenizer()
    assert search(StopPatterns([pattern]), [0] * 50_000, 1, tokenizer.decode) is None
    assert max(tokenizer.decoded) <= most


def test_a_worker_without_the_engine_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATCH.attach is not None
    PATCH.attach()
    monkeypatch.setitem(sys.modules, "re2", None)  # an import of it fails
    with pytest.raises(PatchError, match="google-re2 is not installed"):
        PATCH.attach()
