"""Conversations: how a file's row becomes turns, and how they are played against a server."""

import asyncio
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.bench.test_prompts import TARGET, saved
from toolkit.bench.build import build
from toolkit.bench.conversations import served, turns
from toolkit.bench.errors import BenchError
from toolkit.bench.groups import MOST, by_name, by_turn, turn_metrics
from toolkit.bench.prompts import UserPrompt, parse
from toolkit.bench.runner import BenchLoad, RunOutcome, check, new_session, play
from toolkit.bench.source import Source
from toolkit.bench.target import Target
from toolkit.bench.workload import Item, Workload

ROLES = st.sampled_from(["user", "assistant", "assistant", "user", "system", "tool"])
CHATS = st.lists(st.tuples(ROLES, st.text("abc", min_size=1, max_size=3)), min_size=1, max_size=9)


def spoken(*values: str, **more: object) -> dict[str, Any]:
    """ShareGPT's row; human and gpt take turns."""
    said = [{"from": ("human", "gpt")[n % 2], "value": value} for n, value in enumerate(values)]
    return {"conversations": said, **more}


@given(CHATS)
def test_turns_are_the_conversation_in_its_order(said: list[tuple[str, str]]) -> None:
    prompt = UserPrompt("x", tuple(said), said=tuple(said), place="f:1")
    try:
        found = turns(prompt)
    except BenchError as error:
        assert "nobody asks" in str(error)
        assert all(role in ("system", "assistant") for role, _ in said)
        return
    for before, after in pairwise(found):
        begun = (*before.messages, ("assistant", before.answer))
        assert after.messages[: len(begun)] == begun
        assert {role for role, _ in after.messages[len(begun) :]} - {"assistant"}
        assert "assistant" not in {role for role, _ in after.messages[len(begun) :]}
    # All that was said is played, in its order: but answers before anybody had asked, and what a
    # system says when nobody comes after it.
    asked = next(n for n, (role, _) in enumerate(said) if role not in ("system", "assistant"))
    want = [text for n, (role, text) in enumerate(said) if n > asked or role != "assistant"]
    last = found[-1]
    got = [part for _, text in last.messages for part in text.split("\n\n")]
    got += last.answer.split("\n\n") if last.answer else []
    assert got == want[: len(got)]
    assert len(want) - len(got) <= sum(role == "system" for role, _ in said)
    assert [prompt.place for prompt in found] == [f"f:1, turn {n + 1}" for n in range(len(found))]


def test_an_item_takes_served_answers_in_their_order() -> None:
    said = (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"))
    item = Item("x", 1, messages=said, conversation=0, turn=2)
    assert [text for _, text in served(item, ["B", "D"]).messages] == ["a", "B", "c", "D", "e"]
    for wrong in (["B"], ["B", "D", "F"]):
        with pytest.raises(ValueError, match="history of turn 3"):
            served(item, wrong)


def test_a_row_of_answers_alone_is_refused() -> None:
    row = parse({"conversations": [{"from": "gpt", "value": "a"}]}, "f.json, entry 4")
    with pytest.raises(BenchError, match=r"f.json, entry 4: .*nobody asks"):
        turns(row)


def made(folder: Path, *rows: object, count: int | None = None, **more: Any) -> Workload:
    path = saved(folder, "talk.jsonl", *rows)
    more = {"turns": "recorded", "chat": True, "num_requests": count} | more
    return build(Source(prompts=path, **more), TARGET, open_loop="rate" in more)  # type: ignore[arg-type]


def test_lengths_users_and_kinds_of_turns(tmp_path: Path) -> None:
    rows = [
        spoken("a", "one two three four five six", "b", "x", "c", user="ann", domain="law"),
        spoken("d", "y", "e", output_tokens=7, **{"class": "batch"}),
        {"prompt": "f"},
    ]
    work = made(tmp_path, *rows)
    assert [(item.conversation, item.turn) for item in work] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0),
    ]  # fmt: skip
    assert [len(item.messages) for item in work] == [1, 3, 5, 1, 3, 0]
    tokens = [item.output_tokens for item in work]
    assert tokens[0] > tokens[1] and tokens[2:] == [32, 7, 7, 32]
    assert [item.user for item in work] == ["ann"] * 3 + ["conversation-1"] * 2 + ["conversation-2"]
    assert [item.domain for item in work][:4] == ["law"] * 3 + [""]
    twice = made(tmp_path, *rows, count=5)
    assert [len(chain) for chain in twice.chains()] == [3, 2, 1, 3, 2]
    assert twice.chains()[4][0].user == "conversation-4", "played again, it is another one"


def test_turns_of_a_file_need_the_chat_endpoint(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"talk.jsonl:1, turn 2: 3 messages are a chat"):
        made(tmp_path, spoken("a", "b", "c"), chat=False)


@pytest.mark.parametrize("kind", ["recorded", "served"])
def test_a_conversation_ends_where_the_context_does_and_says_so(tmp_path: Path, kind: Any) -> None:
    """Context of 256; each answer is asked for with 60 tokens."""
    row = spoken(*(f"word {n}" for n in range(24)))
    work = made(tmp_path, row, spoken("a"), turns=kind, max_tokens=60)
    (cut, whole) = work.chains()
    assert len(whole) == 1 and 2 <= len(cut) < 12
    assert (len(cut) < 5) == (kind == "served"), "served answers are longer than the file's"
    (remark,) = work.remarks
    assert remark.startswith(f"{12 - len(cut)} of 13 turns are not played, the ends of 1 conver")
    with pytest.raises(BenchError, match=r"turn 1: .* do not fit"):
        made(tmp_path, spoken("word " * 400, "b", "c"))


def test_conversations_arrive_whole_and_rounds_do_not_cut_them(tmp_path: Path) -> None:
    rows = [spoken("a", "b", "c", "d", "e"), spoken("f"), spoken("g", "h", "i")]
    work = made(tmp_path, *rows, count=40, rate=2.0, think_s=0.5)
    arrivals = [{item.arrival_s for item in chain} for chain in work.chains()]
    assert all(len(each) == 1 for each in arrivals) and len(set.union(*arrivals)) == 40
    mean = max(work.items[-1].arrival_s, 1e-9) / 39
    assert 0.3 < mean < 0.8, "conversations, not turns, arrive at the rate"
    later = [item.think_s for item in work if item.turn]
    assert all(item.think_s == 0 for item in work if not item.turn) and min(later) > 0
    assert 0.3 < sum(later) / len(later) < 0.8
    assert made(tmp_path, *rows, count=40, rate=2.0, think_s=0.5).digest == work.digest
    rounds = work.rounds(3)
    assert [len(part.chains()) for part in rounds] == [13] * 3
    chains = work.chains()
    for number, part in enumerate(rounds):
        assert [[item.messages for item in chain] for chain in part.chains()] == [
            [item.messages for item in chain] for chain in chains[13 * number : 13 * number + 13]
        ]
        assert part.items[0].arrival_s == 0
    with pytest.raises(ValueError, match="40 conversations cannot fill 41 rounds"):
        work.rounds(41)


class Chats:
    """A chat server that answers at once with what it was asked last, and says what it saw."""

    def __init__(self, refuse: str = "") -> None:
        self.bodies: list[dict[str, Any]] = []
        self.users: list[str | None] = []
        self.now: Counter[str | None] = Counter()
        self.most = 0
        self.refuse = refuse

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        user = request.headers.get("x-smg-routing-key")
        self.bodies.append(body)
        self.users.append(user)
        self.now[user] += 1
        assert user is None or self.now[user] == 1, "two turns of one conversation at a time"
        self.most = max(self.most, sum(self.now.values()))
        await asyncio.sleep(0.002)
        self.now[user] -= 1
        last = body["messages"][-1]["content"]
        if last == self.refuse:
            return web.Response(status=429, text="busy")
        answer = web.StreamResponse()
        await answer.prepare(request)
        usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}
        for number, piece in enumerate(["<", last, ">"], 1):
            event = {
                "choices": [{"index": 0, "delta": {"content": piece}}],
                "usage": {**usage, "completion_tokens": number},
            }
            # As SGLang writes it, without spaces.
            line = json.dumps(event, separators=(",", ":"))
            await answer.write(f"data: {line}\n\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        return answer


def talk(server: Chats, workload: Workload, load: BenchLoad) -> RunOutcome:
    async def main() -> RunOutcome:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", server.answer)
        async with TestServer(app) as up, new_session() as session:
            target = Target(str(up.make_url("")).rstrip("/"), "m", None, None)
            return await play(session, target, workload, load)

    return asyncio.run(main())


def histories(server: Chats) -> dict[str | None, list[list[str]]]:
    """Of each user what was said in each request, in the order in which they came."""
    found: dict[str | None, list[list[str]]] = {}
    for user, body in zip(server.users, server.bodies, strict=True):
        found.setdefault(user, []).append([turn["content"] for turn in body["messages"]])
    return found


ROWS = [spoken(*(f"{n}.{part}" for part in range(2 * (n % 3) + 1))) for n in range(9)]
"""Of one to three questions each."""


@pytest.mark.parametrize("open_loop", [False, True])
@pytest.mark.parametrize("kind", ["recorded", "served"])
def test_turns_are_played_in_order_with_the_history_asked_for(
    tmp_path: Path, kind: Any, open_loop: bool
) -> None:
    work = made(tmp_path, *ROWS, turns=kind, **({"rate": 300.0} if open_loop else {}))  # type: ignore[arg-type]
    server = Chats()
    load = BenchLoad("chat", open_loop, concurrency=4, served=kind == "served")
    outcome = talk(server, work, load)
    check(outcome, len(work))
    assert len(server.bodies) == len(work) == 18
    assert 2 <= server.most <= 4, "so many conversations at a time"
    for number in range(9):
        said = histories(server)[f"conversation-{number}"]
        assert len(said) == number % 3 + 1
        for turn, messages in enumerate(said):
            asked = [f"{number}.{2 * n}" for n in range(turn + 1)]
            assert messages[::2] == asked
            recorded = [f"{number}.{2 * n + 1}" for n in range(turn)]
            given = [f"<{question}>" for question in asked[:-1]]
            assert messages[1::2] == (given if kind == "served" else recorded)
    by_number = by_turn(work, outcome.samples, outcome.duration_s)
    assert by_number is not None
    assert [(each["turn"], each["completed"]) for each in by_number] == [(1, 9), (2, 6), (3, 3)]
    assert by_number[0]["cache_hit_rate_pct"] == pytest.approx(40)
    assert set(turn_metrics(work, outcome.samples)) >= {
        "median_first_turn_ttft_ms", "p99_later_turn_ttft_ms"
    }  # fmt: skip


def test_somebody_thinks_between_two_turns(tmp_path: Path) -> None:
    work = made(tmp_path, spoken("a", "b", "c", "d", "e"), think_s=0.1)
    outcome = talk(Chats(), work, BenchLoad("chat"))
    gaps = [
        after.start_time - before.start_time - before.latency
        for before, after in pairwise(outcome.samples)
    ]
    assert all(gap >= item.think_s - 1e-3 for gap, item in zip(gaps, work.items[1:], strict=True))


def test_turns_after_a_refused_one_are_lost_and_counted(tmp_path: Path) -> None:
    work = made(tmp_path, spoken("a", "b", "no", "d", "e"), spoken("f", "g", "h"))
    server = Chats(refuse="no")
    outcome = talk(server, work, BenchLoad("chat"))
    assert [sample.success for sample in outcome.samples] == [True, False, False, True, True]
    assert [sample.status for sample in outcome.samples] == [200, 429, 429, 200, 200]
    assert len(server.bodies) == 4
    with pytest.raises(BenchError, match="2 of 5 requests were lost"):
        check(outcome, len(work))


def test_figures_by_class_and_without_conversations() -> None:
    items = [Item("a", 1, kind=kind, domain="law") for kind in ("batch", "", "batch")]
    work = Workload("w", tuple(items))
    outcome = talk(Chats(), work, BenchLoad("chat"))
    found = by_name(work, outcome.samples, 2.0)
    assert list(found) == ["class"], "one domain tells nothing apart"
    assert {name: each["completed"] for name, each in found["class"].items()} == {"batch": 2, "": 1}
    assert found["class"]["batch"]["request_throughput"] == 1.0
    assert by_turn(work, outcome.samples, 2.0) is None
    assert turn_metrics(work, outcome.samples) == {}


def test_turns_beyond_the_last_that_is_told_alone_are_together() -> None:
    items = [Item("a", 1, conversation=0, turn=n) for n in range(MOST + 3)]
    work = Workload("w", tuple(items))
    outcome = talk(Chats(), work, BenchLoad("chat"))
    found = by_turn(work, outcome.samples, 1.0)
    assert found is not None
    assert [each["completed"] for each in found] == [1] * (MOST - 1) + [4]
    assert [each["and_later"] for each in found] == [False] * (MOST - 1) + [True]
