"""The table of model architectures: what `python -m tests.architectures` recorded of each."""

from __future__ import annotations

from docs import reference


def _newest(benchmark: str) -> dict[str, dict[str, str]]:
    """Architecture -> column -> what came of it, of the last record that has the architecture."""
    found: dict[str, dict[str, str]] = {}
    for record in reference.records():
        if record["benchmark"] == benchmark:
            found |= record["figures"]
    return {
        name: {column: str(said) for column, said in cells.items()}
        for name, cells in found.items()
        if isinstance(cells, dict)
    }


def tried(benchmark: str) -> str:
    """A table *architecture x column* of what `python -m tests.architectures` recorded; what is
    longer than a word or two stands below it, numbered."""
    rows = _newest(benchmark)
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    notes: list[str] = []

    def cell(said: str) -> str:
        short, _, more = (
            said.partition(": ") if said.startswith("refused") else said.partition("; ")
        )
        if not more:
            return short
        if more not in notes:
            notes.append(more)
        return f"{short} ({notes.index(more) + 1})"

    table = [
        (f"`{name}`", *(cell(cells.get(column, "-")) for column in columns))
        for name, cells in rows.items()
    ]
    below = [f"{number}. {reference._cell(note)}" for number, note in enumerate(notes, start=1)]
    return "\n".join([*reference.md_table(("architecture", *columns), table), "", *below])
