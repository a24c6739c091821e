"""The fields of SGLang's request models in each supported release, from its source.

    python -m tests.releases.fields --record

writes `toolkit/router/validate/declared.json`: of each field its type, bounds and default; what the
names in types mean; which validators a model has. Request validation makes its types of that file.
A test compares it with each release, and fails by name for a field of a new release that has no
row and for a validator that nobody has looked at.
"""

import argparse
import ast
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.releases.source import Source
from toolkit.router.validate.declared import FILE, SAMPLING, Types
from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.meanings import KNOWN

_OPENAI = "sglang.srt.entrypoints.openai.protocol"
_ANTHROPIC = "sglang.srt.entrypoints.anthropic.protocol"
MODELS: dict[str, str] = {
    "chat": f"{_OPENAI}.ChatCompletionRequest",
    "completions": f"{_OPENAI}.CompletionRequest",
    "generate": "sglang.srt.managers.io_struct.GenerateReqInput",
    "messages": f"{_ANTHROPIC}.AnthropicMessagesRequest",
    "responses": f"{_OPENAI}.ResponsesRequest",
    "count_tokens": f"{_ANTHROPIC}.AnthropicCountTokensRequest",
    "embeddings": f"{_OPENAI}.EmbeddingRequest",
    "rerank": f"{_OPENAI}.V1RerankReqInput",
    "score": f"{_OPENAI}.ScoringRequest",
    "classify": f"{_OPENAI}.ClassifyRequest",
    SAMPLING: "sglang.srt.sampling.sampling_params.SamplingParams",
}
"""Where SGLang declares what an endpoint takes."""
_BOUNDS = (
    "alias", "gt", "ge", "lt", "le", "allow_inf_nan", "min_length", "max_length", "pattern",
    "union_mode", "discriminator",
)  # fmt: skip
"""Arguments of pydantic's Field that have a say in what is valid."""
_WORDS = {"description", "examples", "deprecated", "exclude", "kw_only"}
"""And those that have none."""
_MADE = {"list": "[]", "dict": "{}"}
"""What some default factories make; what others make, no check looks at."""
Fields = dict[str, dict[str, str]]


@dataclass
class Declared:
    """Of one release: `fields` by endpoint (or nested model) and name, the `names` that types use,
    and the `checks` of each model by name."""

    fields: Fields = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    checks: Fields = field(default_factory=dict)


def declared(source: Source) -> Declared:
    """All that a release declares.

    LookupError: the model of an endpoint, one of its bases, or what a type names is not where it
    was.
    """
    found = Declared()
    for place, symbol in MODELS.items():
        _note(source, symbol, place, found)
    return found


def _note(source: Source, symbol: str, place: str, found: Declared) -> None:
    """Write down a model, and what the types of its fields name."""
    fields: dict[str, str] = {}
    checks: dict[str, str] = {}
    found.fields[place] = fields
    read: list[tuple[str, str]] = []
    for module, node in _bases(source, symbol):
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                name, kind = line.target.id, ast.unparse(line.annotation)
                # What begins with _ is no field to pydantic.
                if not name.startswith("_") and not kind.startswith("ClassVar"):
                    fields[name] = kind + _default(line.value)
                    if _is_read(place, name):
                        read.append((module, fields[name]))
            else:
                checks.update(_check(line))
    if checks and place != SAMPLING:
        found.checks[place] = checks
    for module, declaration in read:
        _follow(source, module, f"_: {declaration}", found)


def _is_read(place: str, name: str) -> bool:
    """Whether the router looks at the type: not where its row leaves that to a worker."""
    row = ENDPOINTS.get(place, {}).get(name)
    return place != SAMPLING and (row is None or row.typed)


def _default(value: ast.expr | None) -> str:
    """What stands behind the type, as far as it has a say in what is valid."""
    if value is None:
        return ""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) not in ("Field", "field"):
        return f" = {ast.unparse(value)}"
    given = {word.arg or "**": ast.unparse(word.value) for word in value.keywords}
    if value.args:
        given["default"] = ast.unparse(value.args[0])
    if unknown := given.keys() - _WORDS - {*_BOUNDS, "default", "default_factory"}:
        raise LookupError(f"has {sorted(unknown)} of {ast.unparse(value)} a say in what is valid?")
    bounds = [f"{name}={given[name]}" for name in _BOUNDS if name in given]
    default = given.get("default", "").replace("...", "")
    if "default_factory" in given:
        default = _MADE.get(given["default_factory"], "None")
    if not bounds:
        return f" = {default}" if default else ""
    return f" = Field({', '.join([f'default={default}', *bounds] if default else bounds)})"


def _check(line: ast.stmt) -> Iterator[tuple[str, str]]:
    """A validator by its name: its decorator, and a digest of its code. So is what a model is
    configured with."""
    if isinstance(line, ast.FunctionDef):
        for decorator in map(ast.unparse, line.decorator_list):
            if decorator.startswith(("field_validator", "model_validator")):
                digest = hashlib.sha256(ast.unparse(line).encode()).hexdigest()[:8]
                yield line.name, f"{decorator}  # {digest}"
    elif isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "model_config":
        yield "model_config", ast.unparse(line.value)


def _follow(source: Source, module: str, text: str, found: Declared) -> None:
    """Write down what each name in a type, or in a default, means."""
    for part in ast.walk(ast.parse(text)):
        name = part.id if isinstance(part, ast.Name) else "_"
        if name == "_" or name in KNOWN or name in found.fields or name in found.names:
            continue
        where, node = _definition(source, module, name)
        if isinstance(node, ast.ClassDef):
            _note(source, f"{where}.{name}", name, found)
        else:
            found.names[name] = ast.unparse(node)
            _follow(source, where, found.names[name], found)


def _definition(source: Source, module: str, name: str) -> tuple[str, ast.ClassDef | ast.expr]:
    """The module of SGLang's that makes a name, and the class or the value that it is."""
    node = _statements(source, module).get(name)
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
        return _definition(source, node.module or "", name)
    if isinstance(node, ast.ClassDef):
        return module, node
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        return module, node.value
    raise LookupError(f"{module}: what is {name}? toolkit/router/validate/models.py must say it")


def _statements(source: Source, module: str) -> dict[str, ast.stmt]:
    """The last statement of a module that makes each name.

    LookupError: there is no such module.
    """
    text = source.text(module)
    if text is None:
        raise LookupError(f"{module} is not there")
    return _made(text)


@functools.cache
def _made(text: str) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(target)] = node
    return found


def _bases(source: Source, symbol: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class with its module, and before it its bases in SGLang."""
    module, _, name = symbol.rpartition(".")
    statements = _statements(source, module)
    node = statements.get(name)
    if not isinstance(node, ast.ClassDef):
        raise LookupError(f"{symbol} is not there")
    for base in map(ast.unparse, node.bases):
        made = statements.get(base)
        if isinstance(made, ast.ClassDef):
            yield from _bases(source, f"{module}.{base}")
        elif isinstance(made, ast.ImportFrom) and (made.module or "").startswith("sglang."):
            yield from _bases(source, f"{made.module}.{base}")
    yield module, node


def histories(found: dict[str, dict[str, str]]) -> dict[str, Types]:
    """What the file says of releases, oldest first: of each name the text in the first release that
    has it, and in each that has another; null where it is gone. In the order of the newest."""
    newest_first = [name for now in reversed(found.values()) for name in now]
    rows: dict[str, Types] = {name: {} for name in newest_first}
    before: dict[str, str] = {}
    for release, now in found.items():
        for name, texts in rows.items():
            if now.get(name) != before.get(name):
                texts[release] = now.get(name)
        before = now
    return rows


def table(found: dict[str, Fields]) -> dict[str, dict[str, Types]]:
    """`histories` of each place."""
    places = dict.fromkeys(place for fields in found.values() for place in fields)
    return {
        place: histories({release: fields.get(place, {}) for release, fields in found.items()})
        for place in places
    }


def main() -> None:
    """Write the file."""
    from tests.releases.fetch import FITTED, source

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", required=True)
    parser.parse_args()
    found = {release: declared(source(release)) for release in FITTED}
    parts = {
        "fields": table({release: each.fields for release, each in found.items()}),
        "checks": table({release: each.checks for release, each in found.items()}),
    }
    lines = [f'"releases": {json.dumps(FITTED)}']
    for part, places in parts.items():
        inside = ",\n".join(
            f"{json.dumps(place)}: {{\n{_rows(rows)}\n}}" for place, rows in places.items()
        )
        lines.append(f"{json.dumps(part)}: {{\n{inside}\n}}")
    names = histories({release: each.names for release, each in found.items()})
    lines.append(f'"names": {{\n{_rows(names)}\n}}')
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _rows(rows: dict[str, Types]) -> str:
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())


if __name__ == "__main__":
    main()
