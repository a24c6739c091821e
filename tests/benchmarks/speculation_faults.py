"""Answers with a draft, through everything that disturbs them, beside those without one.

The same requests twice. First on launch/cpu-speculative.yaml with its draft taken out, one decode
worker, undisturbed. Then on the recipe itself with two decode workers and classes, whose prefill
worker stops best-effort prompts between layers, while

- a request that runs is moved to the other decode worker, twice a second,
- every sixth prompt has `LONG` tokens and is best-effort, every third of the others is
  latency-sensitive,
- a decode worker's scheduler, a decode worker's server and the prefill worker's scheduler get
  SIGKILL, when a quarter, a half and three quarters of the answers are there.

The chooser is late: no decode worker is known before a prompt has run.

keys: `requests`; `lost` (no proper end), `different` (other tokens than without a draft); `moved`
(and `moved_direct` of these with their KV), `stopped` prompts, `kills`, `resumed` streams;
`accepted`, tokens that a step gave.
"""

import asyncio
import json
import os
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import say
from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.moving import migrate
from tests.e2e.workers import metrics, state, victim
from toolkit.contract.headers import CLASS
from toolkit.embedded import load_prompts, model_path
from toolkit.launch.running import Running
from toolkit.resources import recipes_dir
from toolkit.settings.yaml_lines import read_document

MEASURES = ("patches/cpu", "patches/move", "patches/pd", "patches/preempt", "patches/steps")
RECIPE = recipes_dir() / "cpu-speculative.yaml"
LONG = 2_500
AT_A_TIME = 12
KILLED = (("decode-0", "scheduler"), ("decode-1", "server"), ("prefill-0", "scheduler"))


def files(folder: Path) -> tuple[Path, Path]:
    """The recipe with classes, and without its draft."""
    document, _ = read_document(RECIPE)
    ours, plain = folder / "with.yaml", folder / "without.yaml"
    without = {key: value for key, value in document.items() if key != "speculative"}
    without["name"] += "-not"
    without["decode"] = {**without["decode"], "replicas": 1}
    plain.write_text(json.dumps(without))  # JSON is YAML
    document["prefill"] |= {"preempt": "strict", "args": {"chunked-prefill-size": 4096}}
    document["router"]["classes"] = {}
    ours.write_text(json.dumps(document))
    return ours, plain


def asked(count: int) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Bodies of streams, and their headers."""
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(model_path() / "tokenizer.json")).encode
    chance = random.Random("faults")
    short = [prompt for prompt in load_prompts() if "-long-" not in prompt.id]
    chance.shuffle(short)
    bodies, headers = [], []
    for number in range(count):
        text = short[number % len(short)].text
        ids = encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids
        kind = "latency_sensitive" if number % 3 == 1 else "standard"
        if number % 6 == 0:
            ids, kind = (ids * (LONG // len(ids) + 1))[:LONG], "best_effort"
        body = calls.greedy(ids, chance.randint(60, 240), stream=True)
        bodies.append(body | {"rid": f"fault-{number}"})
        headers.append({CLASS: kind})
    return bodies, headers


class Faults:
    """What is done to a deployment while its answers come."""

    def __init__(self, up: Running, count: int) -> None:
        self._up = up
        self._running: dict[str, None] = {}
        self._ended = 0
        self._count = count
        self.outcomes: list[dict[str, Any]] = []
        self.kills = 0

    def told(self, wanted: int, rid: str, tokens: int) -> None:
        """The stream has so many tokens."""
        self._running[rid] = None
        if tokens == wanted:
            self._running.pop(rid)
            self._ended += 1

    async def move(self) -> None:
        """Two a second."""
        chance = random.Random("moves")
        async with calls.session() as http:
            while True:
                await asyncio.sleep(0.5)
                if self._running:
                    rid = chance.choice(list(self._running))
                    self.outcomes += await migrate(http, self._up, rid=rid)

    async def kill(self) -> None:
        """Each in its turn."""
        for turn, (name, process) in enumerate(KILLED, start=1):
            while self._ended < self._count * turn / (len(KILLED) + 1):
                await asyncio.sleep(0.1)
            os.kill(victim(self._up, name, process), signal.SIGKILL)
            self.kills += 1
            say(f"{name}'s {process} was killed after {self._ended} answers")


async def disturbed(
    up: Running, bodies: list[dict[str, Any]], headers: list[dict[str, str]]
) -> tuple[list[calls.Answer], dict[str, Any]]:
    """The answers, and what was done meanwhile."""
    faults = Faults(up, len(bodies))

    def told(index: int, tokens: int) -> None:
        body = bodies[index]
        faults.told(body["sampling_params"]["max_new_tokens"], body["rid"], tokens)

    doing = [asyncio.create_task(each) for each in (faults.move(), faults.kill())]
    answers = await calls.all_of(up.router_url, bodies, AT_A_TIME, told, headers)
    for task in doing:
        task.cancel()
    found = await metrics(up.router_url)

    def total(name: str) -> float:
        return sum(value for key, value in found.items() if key.startswith(name))

    steps = total("toolkit_router_decode_step_requests_total")
    moved = [each for each in faults.outcomes if each["outcome"] == "moved"]
    return answers, {
        "moved": len(moved),
        "moved_direct": sum(each.get("kind") == "direct" for each in moved),
        "stopped": total('toolkit_router_gave_way_total{kind="prompt"'),
        "kills": faults.kills,
        "resumed": (await state(up.router_url))["resumed"],
        "accepted": total("toolkit_router_decode_step_tokens_total") / steps,
    }


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__, ("--requests", {"type": int, "default": 200}))
    if options.quick:
        options.requests = 24
    bodies, headers = asked(options.requests)
    result = Result()
    with tempfile.TemporaryDirectory(prefix="speculation-faults-") as name:
        folder = Path(name)
        ours, plain = files(folder)
        with deployed(plain, folder / "plain") as up:
            alone = asyncio.run(calls.all_of(up.router_url, bodies, AT_A_TIME))
        with deployed(ours, folder / "ours") as up:
            answers, told = asyncio.run(disturbed(up, bodies, headers))
    errors = [answer.error for answer in (*alone, *answers) if answer.error]
    for error in errors[:10]:
        say(error)
    both = list(zip(alone, answers, strict=True))
    result.keys |= {
        "requests": len(bodies),
        "lost": len(errors),
        "different": sum(one.ids != other.ids for one, other in both if not other.error),
        **told,
    }
    result.emit(len(bodies))


if __name__ == "__main__":
    main()
