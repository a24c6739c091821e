"""No file imports itself by way of others, also where only a type checker reads the import.

The lint step's contracts leave out what stands under `if TYPE_CHECKING`. Such a circle does no harm
when a program runs, but its files can be understood only together.
"""

import graphlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import grimp
import pytest

CHECKED = ("patches", "toolkit")
"""Packages whose files are checked together, so that a circle through several of them is found."""


def circle(packages: Sequence[str]) -> list[str]:
    """The imports of one circle, in order, each as "IMPORTER:LINE: TEXT"; empty if none is."""
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]  # each is imported by the next one
        lines = []
        for one, importer in pairwise(found):
            detail = graph.get_import_details(importer=importer, imported=one)[0]
            lines.append(f"{importer}:{detail['line_number']}: {detail['line_contents']}")
        return lines[::-1]
    return []


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert circle(CHECKED) == [], "what both need goes into a file of its own, which both import"


@pytest.mark.parametrize("typed", [False, True])
def test_a_circle_is_found(typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"circular_{typed}".lower()
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "above.py").write_text(f"from {name} import one\n")
    (package / "one.py").write_text(f"def lazy():\n    from {name} import other\n")
    back = f"from {name} import one\n"
    if typed:
        back = f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {back}"
    (package / "other.py").write_text(back)
    monkeypatch.syspath_prepend(tmp_path)
    places = [f"{name}.one:2: from {name} import other"]
    places.append(f"{name}.other:{4 if typed else 1}: from {name} import one")
    assert sorted(circle([name])) == places
