"""The tables of GPU checks in the documents: steps, lines that they reach, what came of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs import reference

RESULTS = reference.ROOT / "results" / "gpu"


def steps() -> str:
    """The steps of `python -m tests.gpu`."""
    from tests.gpu.plan import STEPS

    rows = [
        (f"`{step.name}`", step.shows, f"{step.estimate_s} s", ", ".join(step.groups))
        for step in STEPS
    ]
    return _table(("step", "what it shows", "guess", "parcels"), rows)


def lines() -> str:
    """Lines that only a GPU runs, and the steps that reach them."""
    from tests.gpu.lines import table

    rows = [
        (f"`{line.file}`", f"`{line.text}`", line.does, ", ".join(line.step) or "none")
        for line in table()
    ]
    return _table(("file", "line", "what it does", "steps"), rows)


def results(folder: Path = RESULTS) -> str:
    """What a folder holds of runs on a GPU; says so where it holds nothing. Lists of cells have
    tables of their own."""
    rows = []
    for told in _on_a_gpu(folder):
        origin = f"{told['device'].get('name', '')}, SGLang {told['versions'].get('sglang')}"
        found = {k: v for k, v in told["figures"].items() if not isinstance(v, list)}
        shown = list(reference.figures(found))
        if told["error"]:
            shown.append(("", told["error"].strip().splitlines()[-1]))
        rows += [(f"`{told['step']}`", told["status"], *each, origin) for each in shown]
    if not rows:
        return "None of the steps has been run on a GPU yet."
    return _table(("step", "status", "what", "figures", "from"), rows)


def experts(folder: Path = RESULTS) -> str:
    """Milliseconds of a decode step by requests (rows) and how many different prompts they are
    (columns), with the distinct experts of an MoE layer; empty where `experts` has not run."""
    cells: list[dict[str, Any]] = next(
        (told["figures"]["cells"] for told in _on_a_gpu(folder) if "cells" in told["figures"]), []
    )
    prompts = sorted({cell["prompts"] for cell in cells})
    found = {(cell["batch"], cell["prompts"]): cell for cell in cells}
    rows = [
        (str(batch), *(_cell(found.get((batch, number))) for number in prompts))
        for batch in sorted({cell["batch"] for cell in cells})
    ]
    head = ("requests", *(f"{n} prompt{'s' if n > 1 else ''}" for n in prompts))
    return _table(head, rows) if rows else ""


def _cell(cell: dict[str, Any] | None) -> str:
    return f"{cell['step_ms']:.2f} ({cell['distinct']:.0f})" if cell else ""


def _on_a_gpu(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return [told for told in found if not told["tiny"] and told["device"]["kind"] != "cpu"]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(reference.md_table(head, rows))
