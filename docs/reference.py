"""The parts of the documents that are made from the code and from `results/`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import typer

from patches.registry import ALL
from toolkit.settings.table import Key
from toolkit.settings.table import keys as deployment_keys

ROOT = Path(__file__).resolve().parents[1]


def keys() -> str:
    """The table of deployment keys, a section for each top-level mapping."""
    groups: dict[str, list[Key]] = {}
    for key in deployment_keys():
        head = key.path.split(".")[0] if "." in key.path else ""
        groups.setdefault(head, []).append(key)
    lines = []
    for head, entries in groups.items():
        title = {"": "Top level", "ROLE": "`prefill`, `decode`, `worker`"}.get(head, f"`{head}`")
        rows = [
            (
                f"`{_last(key.path, head)}`",
                key.type,
                f"`{key.default}`" if key.default else "",
                f"{key.meaning}; {key.where}" if key.where else key.meaning,
            )
            for key in entries
        ]
        lines += [
            f"## {title}",
            "",
            *md_table(("key", "type", "default", "meaning"), rows),
            "",
        ]
    return "\n".join(lines)


def _last(path: str, head: str) -> str:
    return path.removeprefix(f"{head}.") if head else path


def md_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    cells = [tuple(_cell(cell) for cell in row) for row in rows]
    lines = [head, tuple("---" for _ in head), *cells]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


class Option(NamedTuple):
    """One option or argument of a command."""

    name: str
    type: str
    default: str
    meaning: str


def commands() -> dict[str, tuple[str, list[Option]]]:
    """Command -> its help text and options, in the order of `toolkit --help`."""
    from toolkit.cli.main import app

    found: dict[str, tuple[str, list[Option]]] = {}

    def walk(command: Any, name: str) -> None:
        found[name] = (inspect.cleandoc(command.help or ""), [_option(p) for p in command.params])
        for word, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {word}")

    walk(typer.main.get_command(app), "toolkit")
    return found


def _option(parameter: Any) -> Option:
    if parameter.param_type_name == "argument":
        name, meaning = (parameter.name or "").upper(), getattr(parameter, "help", "") or ""
    else:
        name = ", ".join([*parameter.opts, *parameter.secondary_opts])
        meaning = parameter.help or ""
    default = parameter.default
    plain = default is not None and not callable(default) and isinstance(default, str | int | float)
    return Option(name, _type_of(parameter), str(default) if plain else "", meaning)


def _type_of(parameter: Any) -> str:
    """The name of an option's type, as its help shows it."""
    kind = getattr(parameter, "type", None)  # typer up to 0.28
    return str(kind.name if kind else parameter.bare_type())


def cli() -> str:
    """Every command with its options."""
    lines = []
    for name, (text, options) in commands().items():
        lines += [f"## {name}", "", text, ""]
        rows = [
            (f"`{o.name}`", o.type, f"`{o.default}`" if o.default else "", o.meaning)
            for o in options
        ]
        if rows:
            lines += [*md_table(("option", "type", "default", "meaning"), rows), ""]
    return "\n".join(lines)


def recipes() -> str:
    """The shipped deployment files, and the systems that each turns on."""
    from toolkit.launch.recipes import shipped

    rows = [
        (f"`{each.name}`", each.device, each.starts, ", ".join(each.systems)) for each in shipped()
    ]
    return "\n".join(md_table(("recipe", "device", "starts", "systems that are on"), rows))


def policies() -> str:
    """The registries, with the docstring of each policy."""
    from toolkit.policies import POLICIES, PUBLISHED

    lines = []
    for name, known in (POLICIES | PUBLISHED).items():
        text = inspect.getdoc(known.make) or ""
        sides = " and ".join(known.sides)
        mark = ":" if name in PUBLISHED else "@"
        after = (
            f" `{name}{mark}{known.parameter.upper()}` sets its parameter."
            if known.parameter
            else ""
        )
        lines += [f"### `{name}`", "", f"Side: {sides}.{after}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def fields() -> str:
    """What request validation does with every field."""
    from toolkit.router.validate.printed import document

    return document()


def records() -> list[dict[str, Any]]:
    """All lines of `results/*.jsonl`, older files first."""
    files = sorted((ROOT / "results").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line]


def figures(found: dict[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """A line for each mapping in a benchmark's figures that has values of its own: where it is
    (keys with dots), and the values. A ratio (`value`, `low`, `high`) is one value."""
    here, deeper = [], []
    for key, value in found.items():
        if isinstance(value, dict) and not {"value", "low", "high"} <= value.keys():
            deeper.append((f"{where}.{key}" if where else key, value))
        else:
            here.append(f"{key} {_value(value)}")
    if here:
        yield where, ", ".join(here)
    for name, value in deeper:
        yield from figures(value, name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inside = "" if value["low"] is None else f" ({value['low']} to {value['high']})"
        return f"{value['value']}{inside}"
    if isinstance(value, list):
        return "; ".join(
            " ".join(text for _, text in figures(each)) if isinstance(each, dict) else str(each)
            for each in value
        )
    return str(value)


def releases() -> str:
    """What is proven of each SGLang release, by patch, from the newest records of `window`."""
    from toolkit.setup import layout
    from toolkit.setup.releases import pinned

    found = [each["figures"] for each in records() if each["benchmark"] == "window"]
    contracts: dict[str, Any] = {}
    tests: dict[str, dict[str, Any]] = {}
    for figures_ in found:
        contracts |= figures_.get("contracts", {})
        for release, kinds in figures_.get("tests", {}).items():
            tests.setdefault(release, {}).update(kinds)
    names, own = sorted(contracts), pinned(layout.here())
    rows = []
    for patch in ALL:
        cells = [_fits(contracts[release], patch.name) for release in names]
        rows.append((f"`{patch.name}`", *cells))
    for kind in ("smoke", "whole"):
        cells = [
            "in every test run" if release == own else _ran(tests.get(release, {}).get(kind))
            for release in names
        ]
        rows.append((f"**{kind}**", *cells))
    return "\n".join(md_table(("", *names), rows))


def _fits(contract: dict[str, Any], name: str) -> str:
    broken = [each for each in contract["problems"] if each.startswith(f"{name}:")]
    return str(broken[0] if broken else contract["variant"].get(name, "fits"))


def _ran(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not run"
    failed = found["failed"]
    said = f"{found['passed']} passed"
    return f"{said}, {len(failed)} failed ({'; '.join(failed)})" if failed else said


def results() -> str:
    """Every recorded result, a section for each benchmark."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records():
        groups.setdefault(record["benchmark"], []).append(record)
    lines = []
    for name, entries in groups.items():
        rows = []
        for entry in entries:
            origin = entry.get("source") or f"{entry['commit']}, {entry['date']}"
            told = (f"`{entry['command']}`", f"{origin}; {entry['machine']}")
            if "result" in entry:
                rows.append((entry.get("what", ""), entry["result"], *told))
                continue
            for what, text in figures(entry["figures"]):
                rows.append((what or entry.get("what", ""), text, *told))
                told = ("as above", "")
        lines += [
            f"## {name}",
            "",
            *md_table(("what", "result", "command", "from"), rows),
            "",
        ]
    return "\n".join(lines)


def suite() -> str:
    """What the last recorded suite said of each system."""
    record = newest_line("suite")

    def ratio(row: dict[str, Any], key: str) -> str:
        return f"{row[key]:.2f} ({row[f'{key}_low']:.2f} to {row[f'{key}_high']:.2f}) times"

    rows = [
        (system, row["answer"], f"{row['what']} {ratio(row, 'ratio')}", row["against"],
         f"{row['price']} {ratio(row, 'price_ratio')}", str(row["pairs"]))
        for system, row in record["figures"].items()
    ]  # fmt: skip
    head = ("system", "answer", "what decides", "against", "beside it", "pairs of rounds")
    origin = f"`{record['command']}`, {record['commit']}, {record['machine']}."
    return "\n".join([*md_table(head, rows), "", origin])


def systems() -> str:
    """What `toolkit plan --systems` said of each of the recorded fleets."""
    record = newest_line("systems")
    figures = record["figures"]
    parts = []
    for case, found in figures["cases"].items():
        rows = []
        for system, row in found["answers"].items():
            why = row["why"] + (f". {row['because'].capitalize()}" if row["because"] else "")
            rows.append((system, row["answer"], why, row["against"]))
        rows += [(system, "not asked", why, "") for system, why in found["left_out"].items()]
        table = md_table(("system", "answer", "why", "against"), rows)
        parts += [f"**{case}**", "", *table, ""]
    if any("expert placement" in found["answers"] for found in figures["cases"].values()):
        parts += [
            "*Relocated experts* and *expert placement* are of synthetic routing, as specialised "
            "as ELDR reports, and of weights that move at the links' nominal speed; those of "
            "DeepSeek-V3 without its draft, by published kernels and DeepEP's table.",
            "",
        ]
    checked = figures["check"]
    parts.append(
        f"`{record['command']}`, {record['commit']}, {figures['seeds']} seeds. Where it could be "
        "checked: an expert of a layer at a batch of 64 takes "
        f"{checked['kernel_us']:.2f} us by NVIDIA's kernels, and {checked['measured_us']:.2f} us "
        "on the H100 that we had."
    )
    return "\n".join(parts)


def newest_line(benchmark: str) -> dict[str, Any]:
    """The last record of `results/BENCHMARK.jsonl`, whole."""
    lines = (ROOT / "results" / f"{benchmark}.jsonl").read_text().splitlines()
    record: dict[str, Any] = json.loads(lines[-1])
    return record


def gpu(name: str) -> str:
    """What `docs.gpu_tables` makes by that name."""
    from docs import gpu_tables

    made: str = getattr(gpu_tables, name)()
    return made


def needed() -> str:
    """The patches that a worker cannot do without."""
    from docs import patch_tables

    return patch_tables.needed()


def wrapping() -> str:
    """What several patches wrap, and in which order."""
    from docs import patch_tables

    return patch_tables.wrapping()


def ablation() -> str:
    """What patches bring that can be left out."""
    from docs import patch_tables

    return patch_tables.ablation()


def features() -> str:
    """SGLang's features beside the toolkit's systems (`docs.features`)."""
    from docs import features

    return features.beside()


def features_releases() -> str:
    """The same in other releases of SGLang."""
    from docs import features

    return features.in_releases()


def tried(benchmark: str) -> str:
    """What `python -m tests.architectures` recorded."""
    from docs import models

    return models.tried(benchmark)


def bounds() -> str:
    """Every bound of the router with its default."""
    from docs.bounds import rows

    return "\n".join(md_table(("bound", "default", "deployment key", "of what"), list(rows())))


def endpoints() -> str:
    """Every endpoint of the router, and the key that it wants."""
    from docs.bounds import endpoints as found

    words = {"none": "none", "client": "a client key", "admin": "the admin key"}
    rows = [
        (f"`{each.method} {each.path}`", words[each.key], "yes" if each.at_admin_port else "")
        for each in found()
    ]
    return "\n".join(md_table(("endpoint", "at the public port", "at the admin port"), rows))


def gains() -> str:
    """What the toolkit gains, from the records."""
    from docs.gains import table

    return table()


PARTS: dict[str, Callable[[], str]] = {
    "keys": keys, "cli": cli, "policies": policies, "recipes": recipes, "suite": suite,
    "systems": systems,
    "fields": fields,
    "results": results, "releases": releases, "bounds": bounds, "endpoints": endpoints,
    **{f"gpu_{name}": partial(gpu, name) for name in ("steps", "lines", "results", "experts")},
    "gains": gains, "needed": needed, "wrapping": wrapping, "ablation": ablation,
    "architectures": lambda: tried("architectures"), "hicache": lambda: tried("hicache"),
    "features": features,
    "features_releases": features_releases,
}  # fmt: skip
