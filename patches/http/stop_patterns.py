"""`stop_regex` by a linear search in schedulers (RE2), in place of Python's `re`.

`re` can go back for ever over some patterns, cannot be interrupted, and holds the interpreter's
lock, so that a scheduler stands still with the requests of everybody and its watchdog with it. RE2
takes time linear in the text, and the text is bounded: SGLang decodes and searches the whole answer
after every token where a pattern has no longest match.
"""

from collections.abc import Callable, Sequence

from patches.base import Hook, Patch, PatchError, Process
from patches.layers import Original
from patches.sglang_types import Req
from toolkit.contract.stop_patterns import StopPatterns

_REQ = "sglang.srt.managers.schedule_batch.Req"
_SAMPLING = "sglang.srt.sampling.sampling_params.SamplingParams"
_PATTERNS = "_toolkit_stop_patterns"
SLACK = 8
"""Characters by which a token may look longer in its text than alone."""


def patterns_of(req: Req) -> StopPatterns:
    """The patterns of a request, compiled once. `patches.http.request_values` has refused the
    request of any that cannot be matched."""
    found: StopPatterns | None = getattr(req, _PATTERNS, None)
    if found is None:
        params = req.sampling_params
        found = StopPatterns(params.stop_regex_strs)
        # SGLang decodes as much for its own search, which is one for stop strings now.
        params.stop_regex_max_len = min(params.stop_regex_max_len, found.tokens)
        setattr(req, _PATTERNS, found)
    return found


def search(
    patterns: StopPatterns, ids: Sequence[int], new: int, decode: Callable[[Sequence[int]], str]
) -> tuple[str, int] | None:
    """The pattern that ends the answer, and after how many of its tokens; None when none does.
    `ids`: all tokens of the answer; `new`: so many of them have not been searched yet."""
    for end in range(len(ids) - min(max(new, 1), len(ids)) + 1, len(ids) + 1):
        # One token more than the longest match: what is before a match must be seen, too.
        begin = max(end - patterns.tokens - 1, 0)
        text = decode(ids[begin:end])
        # Of what is older than this token, only a match's own beginning can matter.
        fresh = len(decode(ids[end - 1 : end])) + SLACK
        start = max(len(text) - patterns.characters - fresh, 1 if begin else 0)
        found = patterns.found(text, min(start, len(text)))
        if found is not None:
            return found, end
    return None


def _finish(original: Original[object], req: Req, new_accepted_len: int = 1) -> object:
    params = req.sampling_params
    if not params.stop_regex_strs:
        return original(req, new_accepted_len)
    patterns = patterns_of(req)
    if params.stop_strs:
        texts, params.stop_regex_strs = params.stop_regex_strs, []
        try:
            if original(req, new_accepted_len):
                return True
        finally:
            params.stop_regex_strs = texts
    found = search(patterns, req.output_ids, new_accepted_len, req.tokenizer.decode)
    if found is None:
        return False
    from sglang.srt.managers.schedule_batch import FINISHED_MATCHED_REGEX

    req.finished_reason = FINISHED_MATCHED_REGEX(matched=found[0])
    req.finished_len = found[1]
    return True


def _has_engine() -> None:
    """A worker without it would fail at the first pattern that a client sends."""
    try:
        import re2  # noqa: F401
    except ImportError as error:
        raise PatchError(
            "google-re2 is not installed, which searches stop_regex: `python3 -m toolkit.setup` "
            "(CPU) or `pip install .[cuda]` brings it"
        ) from error


PATCH = Patch(
    name="stop_patterns",
    why="stop_regex is searched by Python's re, which some patterns hold for ever, and with it the "
    "scheduler of everybody's requests",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(Hook(f"{_REQ}._check_str_based_finish", _finish, ("self", "new_accepted_len")),),
    attach=_has_engine,
    requires=(
        "sglang.srt.managers.schedule_batch.FINISHED_MATCHED_REGEX",
        f"{_SAMPLING}.stop_strs",
        f"{_SAMPLING}.stop_regex_strs",
        f"{_SAMPLING}.stop_regex_max_len",
    ),
)
