"""Each system at work beside a feature, on real CPU workers; every token is the model's own.

A part raises AssertionError where something is wrong, and says "yes", or "off: " and the reason
that the worker itself gave.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from tests.architectures.trial import Refused
from tests.e2e import calls
from tests.e2e.moving import migrate
from tests.e2e.reference import Reference
from tests.e2e.test_preempt import BE, LS, ask
from tests.e2e.test_relocation import call, order, placement, shuffled
from tests.e2e.test_waiting_queue import finished_in
from tests.e2e.workers import metrics, settled, state
from toolkit.launch.running import Running
from toolkit.placement import Topology
from toolkit.placement.relocation import steps

TOKENS, LONG_ANSWER = 32, 160
LONG, SHORT = 3000, 40
TRIES = 6
TIE = 1e-5
"""In nats: rounding of sums of float32 in another order. Seen: 1e-6."""
STOPS = re.compile(r"Best-effort prefills are stopped between chunks only: (.*)")
PAUSES = re.compile(r"Best-effort answers are not paused here: (.*)")
STAYS = re.compile(r"requests cannot be sent elsewhere from this rank: (.*)")


class Trial:
    """Parts on one deployment; `logs`: its folder."""

    def __init__(self, up: Running, logs: Path, reference: Reference, name: str) -> None:
        self._up, self._logs, self._reference, self._name = up, logs, reference, name

    def _prompts(self, of: str, count: int, length: int = 60) -> list[list[int]]:
        return [calls.prompt(f"{self._name}-{of}-{n}", length + 10 * n) for n in range(count)]

    async def _said(self, prompts: list[list[int]], tokens: int, at_once: int) -> None:
        """All say what the model says alone, half of them as streams."""
        bodies = [calls.greedy(ids, tokens, stream=n % 2 == 0) for n, ids in enumerate(prompts)]
        answers = await calls.all_of(self._up.router_url, bodies, at_once)
        assert [answer.error for answer in answers] == [""] * len(answers)
        self._right(prompts, [answer.ids for answer in answers], tokens)

    def _right(self, prompts: list[list[int]], said: list[list[int]], tokens: int) -> None:
        wrong = [
            found
            for ids, its in zip(prompts, said, strict=True)
            if (found := self._difference(ids, its, tokens))
        ]
        assert not wrong, wrong

    def _difference(self, ids: list[int], said: list[int], tokens: int) -> str:
        """What is wrong with an answer. One of two tokens that are as likely is right, and so is
        what the model says after it."""
        if len(said) != tokens:
            return f"prompt of {len(ids)}: {len(said)} tokens, not {tokens}"
        at = 0
        while at < tokens:
            known, rest = [*ids, *said[:at]], said[at:]
            wanted = self._reference.greedy(known, len(rest), rest)
            same = next(
                (n for n, pair in enumerate(zip(rest, wanted, strict=False)) if pair[0] != pair[1]),
                None,
            )
            if same is None:
                return ""
            ours, right = (
                self._reference.log_probabilities(known, [*rest[:same], token])[-1]
                for token in (rest[same], wanted[same])
            )
            if right - ours > TIE:
                return (
                    f"prompt of {len(ids)}: token {at + same}: {right - ours:.2g} nats less likely"
                )
            at += same + 1
        return ""

    def _why(self, pattern: re.Pattern[str]) -> str:
        """What a worker's log says of it."""
        for log in sorted(self._logs.rglob("*.log")):
            if found := pattern.search(log.read_text(errors="replace")):
                return found[1].strip()
        return ""

    async def answers(self) -> str:
        """New prompts, then longer ones that begin with them."""
        prompts = self._prompts("answers", 12)
        await self._said(prompts, TOKENS, 6)
        await self._said([ids + calls.prompt("more", 20) for ids in prompts], TOKENS, 6)
        served = [row for row in (await state(self._up.router_url))["workers"] if row["completed"]]
        assert {row["role"] for row in served} == {"prefill", "decode"}
        return "yes"

    async def first_tokens(self) -> str:
        """Streams begin before a decode worker is chosen."""
        before = (await metrics(self._up.router_url)).get("toolkit_router_early_total", 0)
        await self._said(self._prompts("first", 8), TOKENS, 4)
        after = (await metrics(self._up.router_url)).get("toolkit_router_early_total", 0)
        assert after - before >= 4, "no stream began with the prefill's token"
        return "yes"

    async def signatures(self) -> str:
        """The decode worker is chosen by experts."""
        before = (await state(self._up.router_url))["eldr"]["located"]
        prompts = self._prompts("signatures", 8)
        await self._said(prompts, TOKENS, 4)
        located = (await state(self._up.router_url))["eldr"]["located"] - before
        assert located >= len(prompts), f"{located} of {len(prompts)} were placed by their experts"
        return "yes"

    async def stopped(self) -> str:
        """A long best-effort prompt stops for a short latency-sensitive one."""
        url = self._up.router_url
        async with calls.session() as http:
            for turn in range(TRIES):
                long = calls.prompt(f"{self._name}-long-{turn}", LONG)
                short = calls.prompt(f"{self._name}-short-{turn}", SHORT)
                effort = asyncio.create_task(ask(http, url, long, BE))
                await asyncio.sleep(0.3)
                hurry = await ask(http, url, short, LS)
                self._right([short], [hurry[0]], len(hurry[0]))
                done = await effort
                self._right([long], [done[0]], len(done[0]))
                if await self._gave_way("prompt"):
                    break
        if await self._gave_way("prompt"):
            return "yes"
        why = self._why(STOPS)
        assert why, "no prompt was stopped"
        return f"between chunks: {why}"

    async def paused(self) -> str:
        """Best-effort answers fill the decode workers, and stand still for latency-sensitive
        ones."""
        url = self._up.router_url
        slots = sum(
            worker.max_running or 0 for worker in self._up.plan.workers if worker.role == "decode"
        )
        async with calls.session() as http:
            long = self._prompts("effort", slots, 20)
            efforts = [asyncio.create_task(ask(http, url, ids, BE, LONG_ANSWER)) for ids in long]
            await asyncio.sleep(1.0)
            short = self._prompts("hurry", 4, 20)
            hurries = [ask(http, url, ids, LS, TOKENS) for ids in short]
            self._right(short, [each[0] for each in await asyncio.gather(*hurries)], TOKENS)
            done = [each[0] for each in await asyncio.gather(*efforts)]
            self._right(long, done, LONG_ANSWER)
        if await self._gave_way("answer"):
            return "yes"
        why = self._why(PAUSES)
        assert why, "no answer stood still"
        return f"off: {why}"

    async def _gave_way(self, kind: str) -> bool:
        name = f'toolkit_router_gave_way_total{{kind="{kind}"'
        rows = await metrics(self._up.router_url)
        return any(value for row, value in rows.items() if row.startswith(name))

    async def shortest_first(self) -> str:
        """Seven long prompts, then a short one."""
        asked = [*self._prompts("queue", 7, 1900), calls.prompt(f"{self._name}-queue", SHORT)]
        bodies = [calls.greedy(ids, 1, stream=False) for ids in asked]
        order, answers = await finished_in(self._up.router_url, bodies)
        self._right(asked, [answer.ids for answer in answers], 1)
        assert order.index(len(asked) - 1) <= 3, order
        return "yes"

    async def moved(self) -> str:
        """Streams that go to the other decode worker again and again."""
        prompts = self._prompts("moves", 4)
        bodies = [
            calls.greedy(ids, LONG_ANSWER, stream=True) | {"rid": f"{self._name}-{n}"}
            for n, ids in enumerate(prompts)
        ]
        kinds = {"direct": 0, "replay": 0}
        reasons: dict[str, int] = {}
        async with calls.session() as http:
            url = self._up.router_url
            tasks = [asyncio.create_task(calls.generate(http, url, body)) for body in bodies]
            while not all(task.done() for task in tasks):
                for body in bodies:
                    for move in await migrate(http, self._up, rid=body["rid"]):
                        if move["outcome"] == "moved":
                            kinds[move["kind"]] += 1
                        elif "reason" in move:
                            reasons[move["reason"]] = reasons.get(move["reason"], 0) + 1
                await asyncio.sleep(0.05)
            answers = await asyncio.gather(*tasks)
        assert [answer.error for answer in answers] == [""] * len(answers)
        self._right(prompts, [answer.ids for answer in answers], LONG_ANSWER)
        if kinds["direct"]:
            return "yes"
        why = self._why(STAYS)
        if kinds["replay"]:
            return f"by replay: {why}"
        stays = [reason for reason in reasons if "does not move" in reason]
        if stays:
            raise Refused(stays[0])
        raise AssertionError(f"nothing moved: {reasons}")

    async def ranks(self) -> str:
        """Both DP ranks get requests."""
        await self._said(self._prompts("ranks", 16), TOKENS, 16)
        rows = (await state(self._up.router_url))["workers"]
        served = [row["completed"] for row in rows if row["role"] == "decode"]
        assert len(served) == 2 and min(served) > 0, served
        return "yes"

    async def relocated(self) -> str:
        """Experts move between the ranks while they answer."""
        (url,) = [str(worker.url) for worker in self._up.workers if worker.role == "decode"]
        _, told = await call(url)
        if told["obstacle"]:
            return f"off: {told['obstacle']}"
        now = placement(told)
        prompts = self._prompts("experts", 8)
        serving = asyncio.create_task(self._said(prompts, TOKENS, 8))
        for step in steps(now, shuffled(now, 1), Topology(2), 4)[:4]:
            status, answer = await call(url, order(told, step.rows))
            assert status == 200, answer
            told["serial"] = answer["serial"]
        await serving
        await self._said(prompts, TOKENS, 8)
        return "yes"

    async def whole(self) -> None:
        """Nothing is left, and no worker was started again."""
        await settled(self._up)
        restarts: dict[str, Any] = {each.name: each.restarts for each in self._up.workers}
        assert not any(restarts.values()), restarts
