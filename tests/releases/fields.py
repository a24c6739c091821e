"""The fields of SGLang's request models in each supported release: names and types, from source.

    python -m tests.releases.fields --record

writes `toolkit/router/validate/declared.json`, over which the rows of request validation are laid.
A test compares it with each release, and fails by name for a field of a new release that has no
row.
"""

import argparse
import ast
import functools
import inspect
import json
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from tests.releases.source import Source
from toolkit.router.validate import shapes
from toolkit.router.validate.declared import FILE, SAMPLING, Types

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
NESTED: tuple[str, ...] = tuple(
    name
    for name, kind in inspect.getmembers(shapes, inspect.isclass)
    if issubclass(kind, BaseModel) and kind.__module__ == shapes.__name__
    if name != "StructuralTag"  # XGrammar's
)
"""Models inside of those of the OpenAI endpoints that `shapes` has copied."""
Fields = dict[str, dict[str, str]]
"""By endpoint (or nested model) and name: the type as the source writes it."""


def fields(source: Source) -> Fields:
    """Of every model of a release; an older one may lack a nested model.

    LookupError: the model of an endpoint, or one of its bases, is not where it was.
    """
    found = {place: dict(_declared(source, symbol)) for place, symbol in MODELS.items()}
    for name in NESTED:
        there = name in _statements(source, _OPENAI)
        found[name] = dict(_declared(source, f"{_OPENAI}.{name}")) if there else {}
    return found


def _statements(source: Source, module: str) -> dict[str, ast.stmt]:
    """The last statement of a module that makes each name: its classes and imports.

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
    return found


def _declared(source: Source, symbol: str) -> Iterator[tuple[str, str]]:
    """Fields of a class, those of its bases in SGLang first."""
    module, _, name = symbol.rpartition(".")
    node = _statements(source, module).get(name)
    if not isinstance(node, ast.ClassDef):
        raise LookupError(f"{symbol} is not there")
    for base in node.bases:
        if (found := _base(source, module, ast.unparse(base))) is not None:
            yield from _declared(source, found)
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            kind = ast.unparse(line.annotation)
            # What begins with _ is no field to pydantic.
            if not line.target.id.startswith("_") and not kind.startswith("ClassVar"):
                yield line.target.id, kind


def _base(source: Source, module: str, name: str) -> str | None:
    """The symbol of a base class of SGLang's own; None for one of another package."""
    node = _statements(source, module).get(name)
    if isinstance(node, ast.ClassDef):
        return f"{module}.{name}"
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
        return f"{node.module}.{name}"
    return None


def table(found: Mapping[str, Fields]) -> dict[str, dict[str, Types]]:
    """What the file says of releases, oldest first: of each field the type in the first release
    that has it, and in each that has another; null where it is gone."""
    places: dict[str, dict[str, Types]] = {}
    before: Fields = {}
    for release, now in found.items():
        for place in now:
            rows, old = places.setdefault(place, {}), before.get(place, {})
            for name in old.keys() | now[place].keys():
                kind = now[place].get(name)
                if kind != old.get(name):
                    rows.setdefault(name, {})[release] = kind
        before = now
    return {place: dict(sorted(rows.items())) for place, rows in places.items()}


def main() -> None:
    """Write the file."""
    from tests.releases.fetch import FITTED, source

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", required=True)
    parser.parse_args()
    found = table({release: fields(source(release)) for release in FITTED})
    lines = []
    for place, rows in found.items():
        inside = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()
        )
        lines.append(f"{json.dumps(place)}: {{\n{inside}\n}}")
    releases = f'"releases": {json.dumps(FITTED)}'
    text = "{\n" + ",\n".join([releases, '"fields": {\n' + ",\n".join(lines) + "\n}"]) + "\n}\n"
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
