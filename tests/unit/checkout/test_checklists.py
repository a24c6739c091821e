"""CONTRIBUTING's checklists name places that are there, and all that an example touches."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from patches.registry import ALL
from patches.steps.step_log import FIELDS
from patches.streams.step_summary import SUMS
from toolkit.contract.events import Steps
from toolkit.plan import space
from toolkit.policies import POLICIES, POOLING, PUBLISHED, check_policy
from toolkit.router.collectors import _STEPS
from toolkit.router.steps import StepSums

ROOT = Path(__file__).resolve().parents[3]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LISTS = (
    "To add a policy", "To add a request field", "To add a patch",
    "With a sum over decode steps", "With another metric",
)  # fmt: skip
NOT_TRIED = {"random", "label_oracle"}
"""Policies that `toolkit plan` does not try: baselines, for measuring only."""


def checklist(heading: str) -> list[tuple[str, str]]:
    """(file, symbol) of every place that a checklist names; symbol is empty for a whole file."""
    section = re.split(rf"^##+ {heading}$", CONTRIBUTING, flags=re.M)[1]
    section = re.split(r"^##", section, maxsplit=1, flags=re.M)[0]
    items = section[section.index("- [ ]") :]
    items = "\n".join(line for line in items.splitlines() if line.startswith(("- [ ]", "  ")))
    return re.findall(r"`([\w/]+\.(?:py|md|json))(?::(\w+))?`", items)


def symbols(path: Path) -> Iterator[str]:
    """Names that a module defines at its top."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))


@pytest.mark.parametrize("heading", LISTS)
def test_every_place_of_a_checklist_is_there(heading: str) -> None:
    places = checklist(heading)
    assert places
    for file, symbol in places:
        for known in (file.replace("NAME", "kv_shortest_queue"), file.replace("NAME", "idle")):
            path = ROOT / known.replace("SUBPACKAGE", "cpu")
            if path.exists():
                break
        assert path.exists(), f"{heading}: {file} is not there"
        assert not symbol or symbol in symbols(path), f"{heading}: {file} has no {symbol}"


def files_with(pattern: str, *folders: str) -> set[str]:
    """The Python files of these folders in which `pattern` is found."""
    return {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if re.search(pattern, path.read_text())
    }


def test_a_policy_touches_no_file_that_its_checklist_leaves_out() -> None:
    """Shown by the smallest one."""
    named = {file.replace("NAME", "kv_shortest_queue") for file, _ in checklist(LISTS[0])}
    touched = files_with(r"\bkv_shortest_queue\b|KvShortestQueue", "toolkit", "patches")
    assert touched <= named
    assert len(touched) <= 4


def test_a_request_field_touches_no_file_that_its_checklist_leaves_out() -> None:
    """Shown by a sampling parameter, and by fields that the other lists of the router hold."""
    named = {file for file, _ in checklist(LISTS[1])}
    for name in ("min_p", "presence_penalty", "return_entropy", "return_sampling_mask"):
        assert files_with(rf'"{name}"', "toolkit/router") <= named, name


def test_a_sum_over_steps_is_at_every_place_of_its_checklist() -> None:
    named = dict.fromkeys(name for name in SUMS if name != "steps")
    assert set(named) - {"distinct"} <= set(FIELDS)
    assert set(Steps.__struct_fields__) - {"dp_rank"} == set(SUMS)
    assert set(StepSums.__dataclass_fields__) == set(SUMS) == set(_STEPS)


def test_contributing_names_the_subpackages_that_there_are() -> None:
    said = re.search(r"Subpackages: ([^.]+)\.", CONTRIBUTING)
    assert said is not None
    real = {p.parent.name for p in (ROOT / "patches").glob("*/__init__.py")} - {
        "cpu_stubs",
        "sglang_types",
    }
    assert set(re.findall(r"`(\w+)`", said[1])) == real
    page = (ROOT / "docs/pages/patches.md").read_text().partition("\n- ")[0]
    assert {name for name in real if f"`{name}`" not in page} == set()


def test_every_patch_has_a_line_on_its_page() -> None:
    """Those for the CPU are told together, and each of them in the tables."""
    page = (ROOT / "docs/pages/patches.md").read_text()
    apart = [patch.name for patch in ALL if not patch.name.startswith("cpu_")]
    assert [name for name in apart if f"`{name}`" not in page] == []


def test_every_policy_has_its_row_and_every_row_its_policy() -> None:
    page = (ROOT / "docs/pages/policies.md").read_text()
    table = page[page.index("| name | side |") : page.index("\n\nA name may carry")]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    found = {}
    for names, sides, _ in rows:
        first, *more = re.findall(r"`([^`]+)`", names)
        found[first] = (sides, bool(more))
    pooling = {name for name in found if name.endswith("@POLICY")}
    assert {name.removesuffix("@POLICY") for name in pooling} <= set(POOLING)
    known = POLICIES | PUBLISHED
    assert set(found) - pooling == set(known), "a policy has no row, or a row no policy"
    for name, each in known.items():
        sides = "both" if len(each.sides) == 2 else each.sides[0]
        assert found[name] == (sides, bool(each.parameter)), name


def test_the_planner_tries_policies_that_there_are() -> None:
    """And leaves none out unsaid (`NOT_TRIED`)."""
    for name in (*space.DECODE_POLICIES, *space.LOCAL_POLICIES):
        check_policy(name, "decode")
    for name in space.PREFILL_POLICIES:
        check_policy(name, "prefill")
    everything = (*space.DECODE_POLICIES, *space.LOCAL_POLICIES, *space.PREFILL_POLICIES)
    tried = {re.sub(r"^(un)?pooled@", "", name).split("@")[0] for name in everything}
    told = "a policy belongs into toolkit/plan/space.py, or into NOT_TRIED of this file"
    assert set(POLICIES) - tried == NOT_TRIED, told
