"""A public class has a name of its own, so that a search for it finds one thing."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in (path for part in ("toolkit", "patches") for path in ROOT.glob(f"{part}/**/*.py")):
        if "sglang_types" in path.parts:  # SGLang's own names
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
