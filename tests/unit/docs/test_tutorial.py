"""The tutorial works: its files are written, its lines added and its commands run, in order."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from toolkit.policies.base import Needs
from toolkit.setup.scopes import FAST, SCOPE

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "pages" / "tutorial.md"
OWN = (Path("toolkit/policies"), Path("tests/unit/policies"))
"""Folders that the reader writes into: copied. All others are links to those of the tree."""


class Block(NamedTuple):
    """One fenced block: its language, the file that it is about, its text."""

    language: str
    title: str
    text: str


def blocks() -> list[Block]:
    found = re.findall(
        r'^``` ?(\w*)(?: title="([^"]+)")?\n(.*?)^```$', PAGE.read_text(), re.M | re.S
    )
    return [Block(*each) for each in found]


def clone(target: Path) -> None:
    """A tree to write into: the reader's folders are copies, the others links."""

    def fill(folder: Path) -> None:
        (target / folder).mkdir(parents=True, exist_ok=True)
        for each in sorted((ROOT / folder).iterdir()):
            path = folder / each.name
            if path in OWN:
                shutil.copytree(each, target / path)
            elif any(path in own.parents for own in OWN):
                fill(path)
            elif each.name not in (".git", "build"):
                (target / path).symlink_to(each)

    fill(Path())


def add_lines(path: Path, diff: str) -> None:
    """Put each `+` line behind the line that is shown before it, which the file has once."""
    text, before = path.read_text(), ""
    for line in diff.splitlines():
        if line.startswith("+"):
            assert text.count(f"\n{before}\n") == 1, f"{path.name} has no single line {before!r}"
            text = text.replace(f"\n{before}\n", f"\n{before}\n{line[1:]}\n")
        before = line[1:]
    path.write_text(text)


def ran(command: str, folder: Path) -> str:
    """What the command prints; it must succeed."""
    program, *arguments = command.split()
    assert program == ".venv/bin/python"
    # The properties have all their examples where they run for themselves.
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200", SCOPE: FAST}
    if "pytest" in arguments:
        arguments += ["-p", "no:cacheprovider"]  # no folder of it in the tree
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Command -> what it printed, once the whole page has been done."""
    folder = tmp_path_factory.mktemp("reader")
    clone(folder)
    found: dict[str, str] = {}
    last = ""
    for block in blocks():
        if block.language == "python":
            assert not (folder / block.title).exists(), f"{block.title} is there already"
            (folder / block.title).write_text(block.text)
        elif block.language == "diff":
            add_lines(folder / block.title, block.text)
        elif block.language == "sh":
            for command in block.text.splitlines():
                found[command] = last = ran(command, folder)
        elif block.language == "text":
            assert last == block.text, "the page shows what the command before it prints"
    return found


@pytest.mark.slow
def test_the_page_does_all_that_it_promises(printed: dict[str, str]) -> None:
    kinds = [block.language for block in blocks()]
    assert {"python", "diff", "sh", "text"} <= set(kinds)
    assert len(printed) == 4


@pytest.mark.slow
def test_the_properties_of_all_policies_judge_the_new_one(printed: dict[str, str]) -> None:
    command = next(each for each in printed if "test_policies.py" in each)
    assert re.search(r"\d+ passed", printed[command]) and "failed" not in printed[command]


@pytest.mark.slow
def test_the_simulation_shows_the_new_policy_beside_the_old_one(printed: dict[str, str]) -> None:
    command = next(each for each in printed if "simulate" in each)
    rows = [line for line in printed[command].splitlines() if "room_first" in line]
    assert rows and any("shortest_queue" in line for line in printed[command].splitlines())


def test_the_page_names_the_needs_that_there_are() -> None:
    named = set(re.findall(r"Needs\((\w+)=True\)", PAGE.read_text()))
    assert named and named <= set(Needs.__dataclass_fields__)
    files = re.findall(r"`((?:toolkit/policies/)?[\w/]+\.py)`", PAGE.read_text())
    for name in files:
        policies = ROOT / "toolkit" / "policies"
        assert (ROOT / name).exists() or (policies / name).exists(), name
