"""The tables of SGLang's features beside the toolkit's systems: what `python -m tests.features`
recorded, with the pinned release and with others."""

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


def in_releases() -> str:
    """What is otherwise in other releases than the pinned one; reasons stand below, numbered."""
    pinned, found = newest(), of_releases()
    if not found:
        return "Not asked yet."
    notes: list[str] = []
    rows = []
    for name, places in pinned.items():
        alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for system in places["gpu"]:
            said = tuple(_dry(told, name, system) for told in (pinned, *found.values()))
            if any(each != said[0] for each in said):
                alike.setdefault(said, []).append(system)
        for said, systems in alike.items():
            all_ = len(systems) == len(places["gpu"])
            cells = [_cell(each, notes) for each in said]
            rows.append((name, "all" if all_ else ", ".join(systems), *cells))
    if not rows:
        return f"Nothing is otherwise in {', '.join(found)}."
    below = [f"{number}. {reference._cell(note)}" for number, note in enumerate(notes, start=1)]
    head = ("feature", "system", "pinned release", *found)
    return "\n".join([*reference.md_table(head, rows), "", *below])


def of_releases() -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    """Release -> as `newest`, of the last record of each; oldest release first."""
    found = {
        record["figures"]["release"]: record["figures"]["features"]
        for record in reference.records()
        if record["benchmark"] == "features_releases"
    }
    return {release: found[release] for release in sorted(found, key=_numbers)}


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _dry(told: dict[str, dict[str, dict[str, str]]], name: str, system: str) -> tuple[str, str]:
    """What the launcher says there."""
    return _said({"gpu": told[name]["gpu"]}, system)


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
