"""What the ELDR benchmarks share: unseen prompts, rounds of them, and numbers from the rounds."""

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.bench.compare import Comparison
from toolkit.bench.mix import Deck, parse_mix
from toolkit.bench.runner import BenchLoad, check, play
from toolkit.bench.stats import Ratio, paired_ratio
from toolkit.bench.target import Target
from toolkit.bench.workload import Item, Workload
from toolkit.resources import profiles_dir, recipes_dir
from toolkit.settings.yaml_lines import read_document

RECIPE = recipes_dir() / "cpu-eldr.yaml"
PROFILE = profiles_dir() / "embedded"
DOMAINS = "code:1,math:1,medical:1,legal:1"
SKEW = "en:3,zh:3,ru:1,fr:1"
SHOWN = (
    "median_worker_tpot_ms", "p99_worker_tpot_ms", "distinct_experts", "mean_batch",
    "median_step_ms", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "output_throughput",
)  # fmt: skip
WARM_UP = 32
LONGEST_TEXT = 2_000
"""Characters of a prompt that is drawn from a file."""
LEAST_PROMPTS = 10
"""Unseen prompts of a file's domain in a language; a cell of fewer would repeat them too often."""


def recipe(folder: Path, model: Path | None = None, profile: Path | None = None) -> Path:
    """RECIPE, written to `folder`, with another model and its profile where they are given."""
    document, _ = read_document(RECIPE)
    if model is not None:
        document["model"] = str(model.absolute())
    if profile is not None:
        document["router"]["profile"] = str(profile.absolute())
    path = folder / RECIPE.name
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


def without_experts(folder: Path, model: Path | None = None) -> Path:
    """RECIPE without profile and expert capturer, written to `folder`: what load balancers need."""
    document, _ = read_document(RECIPE)
    if model is not None:
        document["model"] = str(model.absolute())
    document["capture_experts"] = False
    document["router"]["decode_policy"] = "round_robin"
    for key in ("profile", "tau"):
        del document["router"][key]
    path = folder / f"without-{RECIPE.name}"
    path.write_text(json.dumps(document))
    return path


def unseen(file: Path | None = None, profile: Path | None = None) -> list[Any]:
    """Prompts that neither the model's training nor a fit of the profile has seen, and that fit in
    a CPU worker: of a file (see `eldr_rows.read`) those of cells with LEAST_PROMPTS or more, else
    the project's own, of which training has seen none."""
    from toolkit.embedded import load_prompts
    from toolkit.profile_folder.store import read

    if file is not None:
        from tests.benchmarks.shared import eldr_rows

        fit = [p for p in eldr_rows.read(file) if not p.seen and len(p.text) <= LONGEST_TEXT]
        cells = Counter((p.domain, p.language) for p in fit)
        return [p for p in fit if cells[p.domain, p.language] >= LEAST_PROMPTS]
    found, arrays = read(profile or PROFILE)
    rows = zip(found.requests, arrays["held_out"], strict=True)
    fitted = {request.id for request, held_out in rows if not held_out}
    return [prompt for prompt in load_prompts() if prompt.id not in fitted]


class Draw:
    """Items of unseen prompts: no prompt comes twice before all of its kind have come, over all
    draws together; `tokens` output tokens in the mean, half to one and a half times as many."""

    def __init__(
        self, seed: int, tokens: int, file: Path | None = None, profile: Path | None = None
    ) -> None:
        self._prompts = unseen(file, profile)
        self._deck = Deck(self._prompts, seed)
        self._tokens = tokens
        # Equal lengths would end together and start together for ever.
        self._lengths = random.Random(f"lengths-{seed}")

    def items(self, count: int, domains: str, languages: str) -> list[Item]:
        """`count` of one mix, as `parse_mix` writes it."""
        mixes = (
            parse_mix(domains, (p.domain for p in self._prompts), "domain"),
            parse_mix(languages, (p.language for p in self._prompts), "language"),
        )
        least, most = self._tokens // 2, self._tokens * 3 // 2
        return [
            replace(item, output_tokens=self._lengths.randint(least, most))
            for item in self._deck.draw(*mixes, count, self._tokens)
        ]


def workload(
    seed: int,
    rounds: int,
    each: int,
    tokens: int,
    domains: str,
    languages: str,
    file: Path | None = None,
    profile: Path | None = None,
) -> list[Workload]:
    """Rounds of `each` requests of one mix, `file`: of its prompts, `profile`: less those that it
    was fitted to."""
    items = Draw(seed, tokens, file, profile).items(rounds * each, domains, languages)
    return Workload(f"unseen-{seed}", tuple(items)).rounds(rounds)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def warm_up(session: Any, target: Target, first: Workload, load: BenchLoad) -> None:
    """Connections, and first-call costs of every worker."""
    part = Workload("warm-up", first.items[:WARM_UP])
    check(await play(session, target, part, load), len(part))


def ratio(whole: Comparison, arm: int, key: str, other: int) -> Ratio:
    """Of a metric over paired rounds, `arm` divided by `other`."""
    return paired_ratio(
        [metrics[key] for metrics in whole.rounds[arm]],
        [metrics[key] for metrics in whole.rounds[other]],
    )


def medians(whole: Comparison, names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """SHOWN of every arm, over its rounds."""
    return {
        name: {key: whole.median(index, key) for key in SHOWN} for index, name in enumerate(names)
    }


def against(whole: Comparison, names: Sequence[str], other: int) -> dict[str, dict[str, float]]:
    """Every arm's TPOT divided by that of the arm `other`."""
    keys = {"tpot_p50": "median_worker_tpot_ms", "tpot_p99": "p99_worker_tpot_ms"}
    return {
        name: {short: ratio(whole, index, key, other).value for short, key in keys.items()}
        for index, name in enumerate(names)
    }
