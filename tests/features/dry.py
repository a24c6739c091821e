"""What the launcher says of each feature with each system on GPUs, before anything starts: the
answers of one process that has SGLang, for all of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.features.described import FEATURES, SYSTEMS, Contents, Feature, on_gpus
from toolkit.launch.checks import flags, possible
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.settings.load import load_deployment

YES, REFUSED = "yes", "refused: "
Told = dict[tuple[str, str], str]
"""Feature and system: `yes`, with notes behind it, or the reason of a refusal."""


def told(features: Sequence[Feature] = FEATURES) -> Told:
    """All pairs."""
    found: dict[tuple[str, str], Plan | list[Problem]] = {
        (feature.name, system): _planned(on_gpus(feature, system))
        for feature in features
        for system in SYSTEMS
    }
    known = _Known([each for each in found.values() if isinstance(each, Plan)])
    with mock.patch.object(possible, "check_flags", known.check_flags):
        said = {
            pair: possible.check(each, dry_run=True) if isinstance(each, Plan) else each
            for pair, each in found.items()
        }
    # What is said of this deployment whatever its features are: no weights, no GPUs.
    always = {str(each) for each in said[FEATURES[0].name, "late dispatch"] if not each.fatal}
    return {pair: _cell(each, always) for pair, each in said.items()}


def _planned(contents: Contents) -> Plan | list[Problem]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "deployment.yaml"
        file.write_text(json.dumps(contents))  # JSON is YAML
        try:
            return resolve(load_deployment(file))
        except LaunchError as error:
            # The folder has another name each time.
            return [
                replace(each, where=each.where.removeprefix(str(file)).lstrip(": "))
                for each in error.problems
            ]


class _Known:
    """SGLang's word on the workers of many plans. Those that differ in names alone are one."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._kinds: dict[str, str] = {}
        lines: list[dict[str, Any]] = []
        for plan in plans:
            for worker in plan.workers:
                kind = flags._kind(worker)
                if kind in self._kinds:
                    continue
                self._kinds[kind] = f"{worker.role}-{len(lines)}"
                path = plan.model.check_path
                argv = [path if each == plan.model.path else each for each in worker.argv]
                argv = flags._without(argv, flags.IB_FLAG)
                lines.append({"name": self._kinds[kind], "argv": argv, "device": plan.device})
        with mock.patch.object(flags, "TIMEOUT", 3000.0):
            self._answers, complaint = flags._ask(lines)
        assert complaint is None, complaint

    def check_flags(self, plan: Plan, dry_run: bool) -> tuple[list[Problem], flags.Resolved]:
        problems, resolved = [], {}
        for worker in plan.workers:
            answer = self._answers[self._kinds[flags._kind(worker)]]
            if not answer["ok"]:
                what = f"SGLang refuses the flags: {answer['error']}"
                problems.append(Problem(worker.role, what, ""))
            resolved[worker.name] = answer.get("resolved") or {}
        return problems, resolved


def _cell(problems: Sequence[Problem], always: set[str]) -> str:
    wrong = [each for each in problems if each.fatal]
    if wrong:
        return REFUSED + _said(wrong)
    notes = [each for each in problems if str(each) not in always]
    return YES + (f"; {_said(notes)}" if notes else "")


def _said(problems: Sequence[Problem]) -> str:
    texts = dict.fromkeys(
        " ".join(f"{each.where}: {each.what}".lstrip(": ").split()) for each in problems
    )
    return "; ".join(texts)
