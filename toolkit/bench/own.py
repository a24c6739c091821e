"""From the user's own file (`--prompts FILE`) to what is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bench import conversations, prompts
from toolkit.bench.errors import BenchError
from toolkit.bench.source import Source
from toolkit.bench.target import PROMPT_TOKENS, SPARE, Target
from toolkit.bench.workload import Item

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WHY_TOKENIZER = "--prompts needs the model's tokenizer to count tokens"
MESSAGE_TOKENS = 8
"""What a chat template may put around a message of a conversation."""


def items(
    path: Path, source: Source, target: Target, load: Callable[[Path | None, str], Tokenizer]
) -> tuple[list[Item], tuple[str, ...]]:
    """The file's prompts in its order, again from its start where more are asked for; and what is
    to be said of them. `load` gets a model's tokenizer, or says why it is needed.

    BenchError: options that do not go together, a row that is no prompt or too long for the model.
    """
    if source.trace is not None:
        raise BenchError("give --prompts or --trace, not both")
    if source.phases or source.domains != "all" or source.languages != "all":
        raise BenchError(
            "--phase, --domains and --languages choose from the project's prompts; put the rows "
            "that you want into the file of --prompts"
        )
    found = prompts.load(path, source.num_requests)
    _check_classes(found, source)
    alone = source.turns == "one"
    rows = [[row] if alone else conversations.turns(row) for row in found]
    chats = [prompt for row in rows for prompt in row if prompt.is_chat]
    if chats and not source.chat:
        raise BenchError(
            f"{chats[0].place}: {len(chats[0].messages)} messages are a chat: give --endpoint chat"
        )
    lengths = _lengths(rows, source, target, load)
    made: list[Item] = []
    for number in range(source.num_requests or len(rows)):
        row, tokens = rows[number % len(rows)], lengths[number % len(rows)]
        if alone:
            made.append(_item(row[0], tokens[0]))
        else:
            kept = row[: len(tokens)]
            made += conversations.items(kept, tokens, number, source.think_s, source.seed)
    return made, _cut(rows, lengths)


def _check_classes(found: Sequence[prompts.UserPrompt], source: Source) -> None:
    classed = [row for row in found if row.kind] if source.ls_share is not None else []
    if classed:
        raise BenchError(
            f'{classed[0].place}: its class is "{classed[0].kind}" ({len(classed)} of {len(found)} '
            'rows have one), and --ls-share would draw another: leave --ls-share out, or "class" '
            "out of all rows"
        )


def _item(row: prompts.UserPrompt, tokens: int) -> Item:
    return Item(
        row.text,
        tokens,
        domain=row.domain,
        language=row.language,
        user=row.user,
        messages=row.messages,
        kind=row.kind,
    )


def _cut(rows: Sequence[Sequence[Any]], lengths: Sequence[Sequence[int]]) -> tuple[str, ...]:
    missing = [len(row) - len(made) for row, made in zip(rows, lengths, strict=True)]
    if not any(missing):
        return ()
    return (
        f"{sum(missing)} of {sum(map(len, rows))} turns are not played, the ends of "
        f"{sum(map(bool, missing))} conversations: they do not fit the model's context",
    )


def _lengths(
    rows: Sequence[Sequence[prompts.UserPrompt]],
    source: Source,
    target: Target,
    load: Callable[[Path | None, str], Tokenizer],
) -> list[list[int]]:
    """Output tokens of each turn: as --max-tokens says, else its row, else as many as its
    recorded answer has; at most what its context has room for. A conversation ends before the
    first turn, after its first, for which there is none."""
    known = [prompt for row in rows for prompt in row]
    answers = source.max_tokens is None and any(p.answer and not p.max_tokens for p in known)
    folder = source.tokenizer or target.model_path
    if not answers and (folder is None or not (folder / "tokenizer.json").is_file()):
        asked = source.max_tokens
        return [[asked or p.max_tokens or PROMPT_TOKENS for p in row] for row in rows]
    tokenizer = load(folder, WHY_TOKENIZER)

    @cache
    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return [_row_lengths(row, source, target.context, count) for row in rows]


def _row_lengths(
    row: Sequence[prompts.UserPrompt],
    source: Source,
    context: int | None,
    count: Callable[[str], int],
) -> list[int]:
    lengths: list[int] = []
    for prompt in row:
        asked = source.max_tokens or prompt.max_tokens
        if asked is None and prompt.answer:
            asked = count(prompt.answer)
        made = max(1, asked or PROMPT_TOKENS)
        if context is not None:
            given = _given(prompt, lengths, source.turns, count)
            room = context - SPARE - given
            if room < 1 and lengths:
                break
            if room < 1:
                raise BenchError(
                    f"{prompt.place}: {given:,} tokens do not fit the model's context of "
                    f"{context:,}, of which {SPARE} are left free: shorten the prompt or "
                    "leave it out"
                )
            made = min(made, room)
        lengths.append(made)
    return lengths


def _given(
    prompt: prompts.UserPrompt,
    made: Sequence[int],
    turns: conversations.Turns,
    count: Callable[[str], int],
) -> int:
    """Tokens that a turn is sent with, after turns that were asked for `made` tokens each."""
    if turns == "one":
        return count(prompt.text)
    said = prompt.messages or (("user", prompt.text),)
    if turns == "served":
        said = tuple((role, text) for role, text in said if role != conversations.ANSWER)
    served = sum(made) if turns == "served" else 0
    return served + sum(count(text) + MESSAGE_TOKENS for _, text in said)
