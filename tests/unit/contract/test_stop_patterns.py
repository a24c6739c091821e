"""Stop patterns mean what Python's `re` makes of them, and cost what the text is long."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cpu_time import cpu_s
from tests.kernels import examples
from toolkit.contract.stop_patterns import (
    MAX_SIZE,
    StopPatternError,
    StopPatterns,
    why_not,
)

HOSTILE = [
    ".?" * 100 + "\x01",
    ".{0,9}" * 8 + "\x01",
    "[^\x01]*[^\x01]*\x01",
    "(a+)+$",
    "(a|a)*b",
    "(a?a?)*x",
    "(a{0,9}){9}x",
    "(?:a*b*c*d*)*x",
    "((((a*)*)*)*)*x",
]
"""Over a text of many `a` each holds `re` for minutes and more."""
TEXTS = [
    "",
    "a",
    "stop",
    "STOP\n",
    "x\ny\n",
    "a1_ \té",
    "Straße İıiI",
    "ﬁ ſ K k",
    "aaaa\x01",
    "\ufffd日本語",
]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_hostile_pattern_takes_time_linear_in_the_text(pattern: str) -> None:
    """CPU time, and how it grows: `re` is not through the shortest of these texts."""
    patterns = StopPatterns([pattern])

    def taken(length: int) -> float:
        text = "a" * length
        assert patterns.found(text) is None or pattern == "(a+)+$"
        return cpu_s(lambda: patterns.found(text))

    taken(100)
    short, long = taken(40_000), taken(160_000)
    assert long < 12 * max(short, 1e-3)


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["(((", "a"], "no regular expression"),
        (["[^"], "no regular expression"),
        (["a{99999999999}"], "no regular expression"),
        (["(?P=x)"], "no regular expression"),
        (["\ud800"], "no valid Unicode"),
        (["a" * 257], "257 bytes, over the 256-byte limit"),
        (["a"] * 33, "at most 32"),
        (["(a)" * 40] * 20, "2400 bytes, and at most 2048 together"),
        ([r"(a)\1"], "back reference"),
        (["(a)?(?(1)b|c)"], "back reference"),
        (["(?<=a)b"], "look-around"),
        (["(?:x(?=y+))*"], "look-around"),
        (["(?!)"], "look-around"),
        (["a++"], "possessive"),
        (["(?>a)b"], "atomic"),
        ([r"\bEND"], "begin it with (?a)"),
        ([r"a\B"], "begin it with (?a)"),
        (["a$b"], "$ that is not at its end"),
        (["(?:a$)*"], "$ that is not at its end"),
        ([r"[^\Wa]"], "negated set"),
        (["a{1001}"], "at most 1000"),
        (["a{500}", "b{501}"], f"stand for {MAX_SIZE + 1} characters"),
        (["(a{50}){50}"], "repeat fewer times"),
        (["(?:a?){1000}"], "can match 1000 characters"),
        ([r"\w{1,100}!"], "(?a)"),
    ],
)
def test_what_cannot_be_matched_is_refused_with_a_way_out(patterns: list[str], words: str) -> None:
    assert words in (why_not(patterns) or "")


@pytest.mark.parametrize(
    "pattern",
    ["stop", "a|b", r"\d{3}-\d{4}", "\n\n+", "[ab]*c", "(foo|bar)+", "((a{9}){9}){2}", "",
     "(?i)end", r"```[\s\S]*```", r"\s*\Z", "(?P<name>x)y", "(?x) a b # c", r"(?a)\bEND\b",
     "(?m)^#$", r"[\W]x", *HOSTILE],
)  # fmt: skip
def test_ordinary_and_once_hostile_patterns_pass(pattern: str) -> None:
    assert why_not([pattern]) is None


def test_the_first_of_several_is_told_and_what_is_before_the_start_is_only_seen() -> None:
    patterns = StopPatterns(["b", "a", "^c"])
    assert patterns.found("xa") == "a"
    assert patterns.found("ab") == "b"
    assert patterns.found("ax", 1) is None
    assert patterns.found("éa", 1) == "a"
    assert patterns.found("c") == "^c" and patterns.found("xc", 1) is None
    word = StopPatterns([r"(?a)\bd"])
    assert word.found("-d", 1) is not None and word.found("ed", 1) is None


@pytest.mark.parametrize(
    ("pattern", "tokens", "characters"),
    [
        ("abc", 3, 3),
        ("[^a]b", 2, 2),
        ("a{2,5}|bb", 5, 5),
        ("a+", 1024, 4096),
        ("a*" * 60, 1024, 2184),
    ],
)
def test_how_far_a_pattern_looks_back(pattern: str, tokens: int, characters: int) -> None:
    patterns = StopPatterns([pattern])
    assert (patterns.tokens, patterns.characters) == (tokens, characters)


ATOMS = st.sampled_from(
    ["a", "b", "i", "I", "k", "ß", "é", "1", " ", "_", r"\n", ".", r"\w", r"\W", r"\d", r"\D",
     r"\s", r"\S", "[ab]", "[^a]", "[a-z]", r"[^\s]", r"[\W_]", r"[\D1]", "[^0-9]", r"\Z", "^",
     r"[\wι]", r"[^\wι]", r"[^\w;]", r"[\W;]", r"[\w\W]", r"[^\w\W]", r"[\d\D]", "ι",
     r"\A", "(?s:.)", "(?i:s)", "(?i:[^k])", "(?a:\\w)", "(?m:^)", "(?m:$)", "日", r"\x41",
     r"(?a:\b)"]
)  # fmt: skip
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds(
            "(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "*?", "{0,2}", "{2}", "{1,}"])
        ),
        st.builds("({})".format, inner),
    ),
    max_leaves=6,
)
WHOLE = st.builds(
    "{}{}{}".format, st.sampled_from(["", "(?i)", "(?s)", "(?m)", "(?a)", "(?ai)"]), PATTERNS,
    st.sampled_from(["", "$"]),
)  # fmt: skip
LETTERS = st.text(st.sampled_from("abiIkKſßéÉ1²_ \t\n日İı\u212a\x85\u0345ιΙ\u1fbe"), max_size=8)


@settings(max_examples=examples(400), deadline=None)
@given(WHOLE, LETTERS)
def test_a_pattern_means_what_re_makes_of_it(pattern: str, text: str) -> None:
    try:
        patterns = StopPatterns([pattern])
    except StopPatternError:
        return
    assert (patterns.found(text) is not None) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize("letter", "wds")
@pytest.mark.parametrize("flags", ["", "(?a)", "(?i)"])
def test_a_category_holds_the_characters_that_re_knows(letter: str, flags: str) -> None:
    """Of all that this Python's Unicode has assigned; RE2's is newer."""
    known = "".join(
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")
    )
    inside, outside = f"{flags}\\{letter}", f"{flags}\\{letter.upper()}"
    for pattern, other in ((inside, outside), (outside, inside)):
        text = "".join(re.findall(pattern, known))
        assert StopPatterns([pattern]).found(text[:1]) == pattern
        assert StopPatterns([other]).found(text) is None


def test_a_letters_other_case_is_that_of_re() -> None:
    letters = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if chr(code).lower() != chr(code) or chr(code).upper() != chr(code)
    ]
    text = "".join(letters)
    for letter in letters[::7] + list("iIıİsSſkK\u212aßẞµμΜσςΣ"):
        pattern = f"(?i)[{letter}]"
        others = re.sub(pattern, "", text)
        assert StopPatterns([pattern]).found(others) is None
        same = re.findall(pattern, text)
        assert letter in same
        assert all(StopPatterns([pattern]).found(each) for each in same)
