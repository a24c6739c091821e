"""The table of SGLang's features beside the toolkit's systems: what `python -m tests.features`
recorded."""

from __future__ import annotations

from docs import reference

WORKS, ALLOWED, OTHERWISE, REFUSED = "works", "allowed", "otherwise", "refused"


def beside() -> str:
    """Feature x system; reasons stand below, numbered. What real workers did goes before what the
    launcher said."""
    found = newest()
    columns = list(
        dict.fromkeys(
            system
            for places in found.values()
            for system in [*places.get("cpu", {}), *places["gpu"]]
        )
    )
    notes: list[str] = []
    rows = []
    for feature, places in found.items():
        cells = [_cell(_said(places, system), notes) for system in columns]
        rows.append((feature, *cells))
    below = [f"{number}. {reference._cell(note)}" for number, note in enumerate(notes, start=1)]
    return "\n".join([*reference.md_table(("feature", *columns), rows), "", *below])


def newest() -> dict[str, dict[str, dict[str, str]]]:
    """Feature -> `gpu` or `cpu` -> system -> what came of it, of the last record that has it."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for record in reference.records():
        if record["benchmark"] == "features":
            found |= {
                name: places
                for name, places in record["figures"].items()
                if isinstance(places, dict)
            }
    return found


def _said(places: dict[str, dict[str, str]], system: str) -> tuple[str, str]:
    """The word and its reason."""
    dry, real = places["gpu"].get(system, ""), places.get("cpu", {}).get(system)
    if system not in places["gpu"] and real is None:
        # What goes with late dispatch on GPUs goes as late dispatch does.
        dry = places["gpu"]["late dispatch"]
    if dry.startswith("refused: "):
        return REFUSED, dry.removeprefix("refused: ")
    if real is None:
        return ALLOWED, dry.partition("; ")[2]
    if real == "yes":
        return WORKS, dry.partition("; ")[2]
    return OTHERWISE, real


def _cell(said: tuple[str, str], notes: list[str]) -> str:
    word, why = said
    if not why:
        return word
    if why not in notes:
        notes.append(why)
    return f"{word} ({notes.index(why) + 1})"
