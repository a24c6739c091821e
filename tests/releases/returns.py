"""How the functions that our patches hook give back what they give: contracts see arguments only.

    python -m tests.releases.returns --record

writes down the shapes of the `return`s of each hooked function in each supported release. A test
compares. A release that returns a pair where there was one value, or nothing, is found so. Read the
function before you record it anew.
"""

import argparse
import ast
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from patches.registry import ALL
from tests.releases.source import Source

FILE = Path(__file__).with_name("returns.json")
EVERY = "every"
"""In the file: of all supported releases."""
Shapes = list[str]


def shapes(text: str) -> Shapes:
    """Of a function's source: `nothing`, `value`, `tuple of N`, `yield`; `-> ...` as it says."""
    function = ast.parse(textwrap.dedent(text)).body[0]
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return ["no function"]
    found = {_shape(each) for each in _own(function)} or {"nothing"}
    if isinstance(function, ast.AsyncFunctionDef):
        found.add("awaited")
    if function.returns is not None:
        found.add(f"-> {ast.unparse(function.returns)}")
    return sorted(found)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Returns and yields of a function, not those of functions inside of it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(child, ast.Return | ast.Yield | ast.YieldFrom):
            yield child
        yield from _own(child)


def _shape(node: ast.AST) -> str:
    if not isinstance(node, ast.Return):
        return "yield"
    value = node.value
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return "nothing"
    return f"tuple of {len(value.elts)}" if isinstance(value, ast.Tuple) else "value"


def hooked(source: Source) -> dict[str, Shapes]:
    """By symbol, of every hooked function of SGLang's that this release has."""
    found = {}
    for patch in ALL:
        hooks = [*patch.hooks, *(hook for each in patch.variants for hook in each.hooks)]
        for hook in hooks:
            text = source.text(hook.target)
            if hook.target.startswith("sglang.") and text is not None:
                found[hook.target] = shapes(text)
    return dict(sorted(found.items()))


def recorded(release: str) -> dict[str, Shapes]:
    """As `hooked` was for that release."""
    rows: dict[str, dict[str, Shapes]] = json.loads(FILE.read_text(encoding="utf-8"))
    every = {name: row.get(release, row.get(EVERY)) for name, row in rows.items()}
    return {name: shapes for name, shapes in every.items() if shapes is not None}


def main() -> None:
    """Write the file."""
    from tests.releases.fetch import FITTED, source

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", required=True)
    parser.parse_args()
    found = {release: hooked(source(release)) for release in FITTED}
    lines = []
    for name in sorted(set().union(*found.values())):
        row = {release: each[name] for release, each in found.items() if name in each}
        same = len(row) == len(FITTED) and len(set(map(tuple, row.values()))) == 1
        told = {EVERY: row[FITTED[-1]]} if same else row
        lines.append(f"{json.dumps(name)}: {json.dumps(told)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
