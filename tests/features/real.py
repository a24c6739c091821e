"""A feature on real CPU workers, with everything that goes by requests and then with DP ranks that
share experts; what came of each system."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from tests.architectures.deployment import up as deployed
from tests.architectures.trial import Refused
from tests.e2e import adapter, calls
from tests.e2e.reference import Reference
from tests.features.described import EXPERTS, REQUESTS, Contents, Feature, on_cpus
from tests.features.dry import REFUSED
from tests.features.trial import Trial

FAILED = "FAILED: "
Part = Callable[[Trial], Awaitable[str]]
OF_REQUESTS: dict[str, Part] = {
    "late dispatch": Trial.answers,
    "first token from prefill": Trial.first_tokens,
    "signatures": Trial.signatures,
    "stopped prompts": Trial.stopped,
    "paused answers": Trial.paused,
    "shortest first": Trial.shortest_first,
    "moves": Trial.moved,
}
OF_EXPERTS: dict[str, Part] = {"level DP ranks": Trial.ranks, "relocated experts": Trial.relocated}


def tried(
    feature: Feature, told: Mapping[str, str], folder: Path, reference: Reference
) -> dict[str, str]:
    """System -> `yes`, `off: why` or `FAILED: why`, of those that the launcher does not refuse:
    `told` is what it says of each."""
    cells: dict[str, str] = {}
    kinds = [(REQUESTS, OF_REQUESTS), *([(EXPERTS, OF_EXPERTS)] if feature.ranks else [])]
    for base, all_parts in kinds:
        parts = {
            system: part
            for system, part in all_parts.items()
            if not told.get(system, "").startswith(REFUSED)
        }
        place = folder / f"of-{len(all_parts)}"
        try:
            with deployed(_filled(on_cpus(feature, base, parts), place), place) as up:
                trial = Trial(up, place, reference, f"{feature.name}-{len(all_parts)}")
                for system, part in parts.items():
                    cells[system] = _cell(trial, part)
                calls.run(trial.whole())
        except Exception as error:
            traceback.print_exc()
            cells |= dict.fromkeys(parts, FAILED + _told(error))
    return cells


def _cell(trial: Trial, part: Part) -> str:
    async def run() -> str:
        return await part(trial)

    try:
        return str(calls.run(run()))
    except Refused as error:
        return f"off: {error}"
    except Exception as error:
        traceback.print_exc()
        return FAILED + _told(error)


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _filled(contents: Contents, folder: Path) -> dict[str, Any]:
    """With the files that a feature needs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(contents)
    if "{adapter}" in text:
        tuned = folder / "adapter"
        adapter.write(tuned, 1)
        text = text.replace("{adapter}", str(tuned))
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder / "store")
    made: dict[str, Any] = json.loads(text)
    return made


def failed(cells: dict[str, str]) -> bool:
    """Whether a system neither works nor says why not."""
    return any(said.startswith(FAILED) for said in cells.values())
