"""Greedy tokens of a worker with our patches and of the same worker without them.

One prompt at a time, so that each runs in batches of its own: a GPU's sums depend on what else is
in the batch. The plain server answers twice; what differs between the two is the device's doing.

figures: `prompts`, `tokens` of each; `different_repeat`, prompts whose tokens differ between the
plain server's two answers; `different_patched`, between its first one and the patched worker's, and
the `first` position at which each of those does; `distinct_outputs`, as a degenerate model would
agree about anything. Fails where patches change more prompts than a repetition.
"""

from typing import Any

from tests.e2e import calls
from tests.gpu.context import Context
from tests.gpu.servers import plain_server

TOKENS = 16


def prompts(context: Context) -> list[list[int]]:
    """Short ones, some longer than a chunk of 512, some that share a prefix, some again."""
    short = [calls.prompt(f"short-{n}", 3 + 2 * n) for n in range(context.size(20, 4))]
    long = [calls.prompt(f"long-{n}", 900 + 300 * n) for n in range(context.size(5, 1))]
    shared = calls.prompt("shared", 250)
    hits = [
        shared[: 100 + 10 * n] + calls.prompt(f"tail-{n}", n) for n in range(context.size(15, 2))
    ]
    return short + long + hits + short[:5] + hits[:5]


def described(context: Context) -> dict[str, Any]:
    """One worker, with all that can be on without another one."""
    worker = context.role(16384, 16, args={"chunked-prefill-size": 512})
    return context.described("outputs", "plain", worker=worker, capture_experts=True)


def asked(url: str, ids: list[list[int]]) -> list[list[int]]:
    bodies = [calls.greedy(prompt, TOKENS, stream=False) for prompt in ids]
    answers = calls.run(calls.all_of(url, bodies, concurrency=1))
    lost = [answer.error for answer in answers if answer.error]
    assert not lost, f"{len(lost)} of {len(bodies)} requests were lost: {lost[0]}"
    return [answer.ids for answer in answers]


def first_differences(one: list[list[int]], other: list[list[int]]) -> list[int]:
    """Of every prompt whose tokens differ, the position of the first that does."""
    return [
        next(n for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
        for left, right in zip(one, other, strict=True)
        if left != right
    ]


def measure(context: Context, figures: dict[str, Any]) -> None:
    ids = prompts(context)
    figures |= {"prompts": len(ids), "tokens": TOKENS}
    with context.measuring("outputs"):
        with plain_server(context, described(context), "outputs-plain") as url:
            plain, again = asked(url, ids), asked(url, ids)
        figures["distinct_outputs"] = len({tuple(tokens) for tokens in plain})
        figures["different_repeat"] = len(first_differences(plain, again))
        with context.deployed(described(context), "outputs-patched") as up:
            patched = asked(up.router_url, ids)
    found = first_differences(plain, patched)
    figures |= {"different_patched": len(found), "first": found}
    assert figures["distinct_outputs"] > 1, "the model says the same to everything"
    assert len(found) <= figures["different_repeat"], f"patches change {len(found)} prompts"
