"""Conversations of several turns, from the user's own file (`--turns recorded` or `served`).

A turn is what is said up to an answer: one question mostly, or a question with what a tool found.
It is sent with all that was said before. Whose answers that history has is the run's choice:
`recorded`, those of the file, so that every policy and every run sends the very same tokens; or
`served`, those that the workers gave, as a real client would, whose prefix is in their caches.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from toolkit.bench.errors import BenchError
from toolkit.bench.prompts import UserPrompt
from toolkit.bench.workload import Item

Turns = Literal["one", "recorded", "served"]
"""`one`: a row is one request, as SGLang's `bench_serving` has it."""
TURNS = ("one", "recorded", "served")
ANSWER = "assistant"


def turns(prompt: UserPrompt) -> list[UserPrompt]:
    """The turns of one row, each with the history before it. What is no chat is one turn.

    Answers before the first question are left out: nobody could have got them here. Two answers in
    a row are one. BenchError: nobody asks anything.
    """
    if not prompt.said:
        return [prompt]
    found: list[UserPrompt] = []
    history: list[tuple[str, str]] = []
    for asked, answer in _exchanges(prompt.said):
        history += asked
        said = tuple(history)
        text = "\n\n".join(content for _, content in said)
        found.append(
            replace(
                prompt,
                text=text,
                messages=said,
                answer=answer,
                place=f"{prompt.place}, turn {len(found) + 1}",
            )
        )
        history.append((ANSWER, answer))
    if not found:
        raise BenchError(f"{prompt.place}: it has answers alone, and nobody asks")
    return found


def _exchanges(
    said: Sequence[tuple[str, str]],
) -> list[tuple[list[tuple[str, str]], str]]:
    """(what is asked, the answer) of each turn; the last one may lack its answer."""
    found: list[tuple[list[tuple[str, str]], str]] = []
    asked: list[tuple[str, str]] = []
    for role, content in said:
        if role != ANSWER:
            asked.append((role, content))
        elif asked and (found or any(role != "system" for role, _ in asked)):
            found.append((asked, content))
            asked = []
        elif found:
            before, answer = found[-1]
            found[-1] = (before, f"{answer}\n\n{content}")
    if any(role != "system" for role, _ in asked):
        found.append((asked, ""))
    return found


def items(
    turns: Sequence[UserPrompt], lengths: Sequence[int], number: int, think_s: float, seed: int
) -> list[Item]:
    """One conversation, ready to be sent: `lengths` output tokens a turn, `number` its own in the
    run. Between an answer and the next turn lie exponential times of mean `think_s`, the same in
    every run of one seed. A row that names no user is a user of its own, so that a policy with
    affinity sees who comes back."""
    source = random.Random(f"think-{seed}-{number}")
    user = turns[0].user or f"conversation-{number}"
    return [
        Item(
            prompt.text,
            made,
            domain=prompt.domain,
            language=prompt.language,
            user=user,
            messages=prompt.messages,
            kind=prompt.kind,
            conversation=number,
            turn=turn,
            think_s=source.expovariate(1 / think_s) if turn and think_s else 0.0,
        )
        for turn, (prompt, made) in enumerate(zip(turns, lengths, strict=True))
    ]


def served(item: Item, answers: Sequence[str]) -> Item:
    """The item with the `answers` that were served before it, in the place of the file's own.

    ValueError: more or fewer answers than the item's history has.
    """
    left = list(answers)
    if len(left) != sum(role == ANSWER for role, _ in item.messages):
        raise ValueError(f"{len(left)} answers do not fill the history of turn {item.turn + 1}")
    messages = tuple(
        (role, left.pop(0) if role == ANSWER else content) for role, content in item.messages
    )
    return replace(item, messages=messages)
