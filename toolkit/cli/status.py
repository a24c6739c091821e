"""`toolkit status`."""

import sys
from pathlib import Path
from typing import Any

import typer

from toolkit.bounded_files import parse_json


def status(
    run: str = typer.Option(
        None, help="Path or name of a run folder, or a deployment's name; default: what lives."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Show the processes of a run: health, restarts, memory. Exit status 3 when it is not up."""
    from toolkit.launch import runs
    from toolkit.launch.state import rows_of

    shown_run = runs.to_read(run)
    folder, state, alive = shown_run.folder, shown_run.state, shown_run.launched
    phase = state["phase"] if alive or state["phase"] in ("stopped", "failed") else "launcher gone"
    known = _routers_know(state) if alive else {}
    routed = _by_name(known)
    rows = [_row(p, alive, routed) for p in rows_of(state)]
    if as_json:
        import json

        shown = {"run": str(folder), "phase": phase, "processes": rows}
        if len(known) == 1:
            shown |= _said(next(iter(known.values())))
        elif known:
            shown["routers"] = {name: _said(each) for name, each in known.items()}
        print(json.dumps(shown, indent=1))
    else:
        _show(folder, state, phase, rows)
        for name, each in known.items():
            which, said = f"{name}: " if len(known) > 1 else "", _said(each)
            if line := faults_line(said):
                print(which + line)
            if isinstance(said.get("eldr"), dict):
                print(which + eldr_line(said["eldr"]))
            if isinstance(said.get("moves"), dict) and (line := moves_line(said["moves"])):
                print(which + line)
    if run is None and (others := [r for r in runs.every() if r.lives and r.folder != folder]):
        names = ", ".join(other.folder.name for other in others)
        print(f"others live too, see them with --run: {names}", file=sys.stderr)
    if phase != "ready":
        raise typer.Exit(3)


def _said(known: dict[str, Any]) -> dict[str, Any]:
    """What a router says of more than single workers."""
    names = ("empty_roles", "pairs", "moves", "eldr")
    return {name: known[name] for name in names if known.get(name) is not None}


def _routers_know(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each router of this run says in `GET /workers`, by its name; those that answer."""

    from toolkit.keys import KeysError
    from toolkit.launch import isolation, keys

    try:
        key = keys.admin_key(state) if state.get("admin_url") else keys.client_key(state)
    except KeysError as error:
        print(f"{error}: without it this says only what the launcher knows", file=sys.stderr)
        return {}
    if state.get("isolated"):
        try:
            isolation.enter(state["pid"])
        except OSError as error:
            print(f"its namespace cannot be entered: {error.strerror}", file=sys.stderr)
            return {}
    rows = state.get("routers") or [{"name": "router", "url": state["router_url"]}]
    asked = {row["name"]: row.get("admin_url") or row["url"] for row in rows}
    if not state.get("routers") and state.get("admin_url"):
        asked["router"] = state["admin_url"]  # of a router on another host
    answers = {name: _asked(url, key, state) for name, url in asked.items()}
    return {name: answer for name, answer in answers.items() if answer}


def _asked(url: str, key: str | None, state: dict[str, Any]) -> dict[str, Any]:
    """`GET /workers` there; empty when it does not answer, or is another run's."""
    from toolkit.launch import readiness

    code, body, run, _ = readiness.ask(f"{url}/workers", timeout=3.0, key=key)
    if run is not None and run != state.get("run_id"):
        print(f"{url} is answered by another run's router", file=sys.stderr)
        return {}
    if code != 200:
        return {}
    try:
        answer = parse_json(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _by_name(known: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of workers' ranks by worker, of all routers."""
    result: dict[str, list[dict[str, Any]]] = {}
    for router in known.values():
        for row in router.get("workers") or ():
            if isinstance(row, dict):
                result.setdefault(str(row.get("name")), []).append(row)
    return result


def eldr_line(eldr: dict[str, Any]) -> str:
    """The `eldr` block of `GET /workers` in one line."""
    fallbacks = eldr["fallbacks"]
    by_load = sum(fallbacks.values())
    parts = [
        f"eldr: {eldr['centroids']} centroids, tau {eldr['tau']:g}"
        + ("" if eldr["active"] else " (not the decode policy now)"),
        f"{eldr['located']} of {eldr['located'] + by_load} requests by signature",
    ]
    if eldr["located"]:
        parts[-1] += (
            f" (band {eldr['band_mean']:.1f} workers; {eldr['moved']} to another in it than the "
            f"nearest centroid's, {eldr['crowded']} as that one was full or crowded)"
        )
    if fallbacks:
        why = ", ".join(f"{count} {reason}" for reason, count in fallbacks.items())
        parts.append(f"{by_load} by load: {why}")
    if eldr["fit"] is not None:
        parts.append(f"cosine {eldr['fit']:.3f}, {eldr['expected']:.3f} expected")
    if eldr["refits"]:
        last = eldr["refits"][-1]
        parts.append(f"last refit: {last['cause']}, {last['result']}")
    if eldr["problems"]:
        parts.append("does not fit the profile: " + ", ".join(eldr["problems"]))
    return "; ".join(parts)


def faults_line(said: dict[str, Any]) -> str:
    """Of `GET /workers`: what no single worker's row says; empty where nothing is wrong."""
    parts = [f"no {role} worker takes requests" for role in said.get("empty_roles") or ()]
    parts += [
        f"no KV gets from {pair['prefill']} to {pair['decode']}"
        for pair in said.get("pairs") or ()
        if pair["left_out"]
    ]
    return f"faults: {'; '.join(parts)}" if parts else ""


def moves_line(moves: dict[str, Any]) -> str:
    """The `moves` block of `GET /workers` in one line; empty where nothing was to move."""
    outcomes = moves["outcomes"]
    if not outcomes:
        return ""
    done: dict[tuple[str, str], int] = {}
    for each in outcomes:
        what = each["why"], each["outcome"]
        done[what] = done.get(what, 0) + each["count"]
    parts = [f"{count} {outcome} ({why})" for (why, outcome), count in sorted(done.items())]
    line = f"moves: {', '.join(parts)}"
    if moves["stall_ms"]:
        stalls = ", ".join(f"{name} {ms:.0f}" for name, ms in moves["stall_ms"].items())
        line += f"; {moves['tokens']} KV tokens; stalls in ms: {stalls}"
    return line


def _row(process: dict[str, Any], alive: bool, routed: dict[str, Any]) -> dict[str, Any]:
    ranks = routed.get(process["name"].removesuffix("-node-0"), [])
    return {
        "name": process["name"],
        "role": process["role"],
        "status": process["status"] if alive else "gone",
        "pid": process["pid"],
        "url": process["url"],
        "restarts": process["restarts"],
        "memory_mib": _memory(process) if alive else None,
        "stuck": next((r["stuck"] for r in ranks if r.get("stuck")), None),
        "healthy": all(r.get("healthy") for r in ranks) if ranks else None,
        "held": any(r.get("held") for r in ranks) if ranks else None,
        "inflight": sum(r.get("inflight") or 0 for r in ranks) if ranks else None,
        "completed": sum(r.get("completed") or 0 for r in ranks) if ranks else None,
        "lengths": ", ".join(dict.fromkeys(r["range"] for r in ranks if "range" in r)) or None,
        "note": process["note"],
        "log": process["log"],
    }


def status_of(row: dict[str, Any]) -> str:
    """As the table has it: what the launcher says, and of a worker that makes no step since when,
    as the router says."""
    import time

    stuck = row["stuck"]
    if not isinstance(stuck, dict) or row["status"] not in ("ready", "stuck"):
        return str(row["status"])
    at = time.strftime("%H:%M:%S", time.localtime(stuck.get("since")))
    return f"{stuck.get('state')} since {at}"


def _memory(process: dict[str, Any]) -> int | None:
    """PSS of the whole process group in MiB (shared pages are counted once over all who share)."""
    from toolkit.launch import trees

    if not process["pid"]:
        return None
    total = 0
    for member in trees.members({process["pid"]: process["start_ticks"]}):
        try:
            text = Path(f"/proc/{member.pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(x.split()[1]) for x in text.splitlines() if x.startswith("Pss:"))
    return total // 1024


def _show(folder: Path, state: dict[str, Any], phase: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from toolkit.report import terminal

    where = ", ".join(state.get("router_urls", [state["router_url"]]))
    table = Table(title=f"{state['name']}: {phase}, {where}", title_justify="left")
    columns = [
        "name",
        "status",
        "healthy",
        "pid",
        "restarts",
        "memory_mib",
        "inflight",
        "completed",
    ]
    columns += ["lengths"] * any(row["lengths"] for row in rows) + ["url", "note"]
    for heading in columns:
        table.add_column(heading.replace("memory_mib", "MiB"))
    for row in rows:
        row = row | {"status": status_of(row)}
        table.add_row(*("" if row[h] is None else str(row[h]) for h in columns))
    table.caption = str(folder)
    terminal.show(terminal.console(), table)
