"""`toolkit migrate`."""

from typing import Any

import typer

from toolkit.cli.meant import RUN, operator


def migrate(
    rid: str = typer.Argument(None, help="The id of a request; in its place: --from."),
    source: str = typer.Option(None, "--from", help="A decode worker whose longest ones move."),
    to: str = typer.Option(None, help="Where to, as decode-1 or decode-1:0; default: the policy."),
    count: int = typer.Option(None, help="With --from: how many."),
    run: str = RUN,
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Move requests to another decode worker while they run. Exit status 1 when none has moved."""
    asked = {"rid": rid, "from": source, "to": to, "count": count}
    told = operator(run).migrate(
        {name: value for name, value in asked.items() if value is not None}
    )
    if as_json:
        import json

        print(json.dumps(told, indent=1))
    else:
        for line in lines(told):
            print(line)
    if not told["moved"]:
        raise typer.Exit(1)


def lines(told: dict[str, Any]) -> list[str]:
    """A line for each request, and one for each reason why others stay."""
    out = []
    for move in told["moves"]:
        if move["outcome"] == "moved":
            took = f"{move['tokens']} tokens, {move['kind']}, stalled {move['stall_ms']:.0f} ms"
            out.append(f"{move['rid']}: {move['from']} -> {move['to']} ({took})")
        else:
            out.append(f"{move['rid']}: {move['outcome']}: {move['reason']}")
    out += [f"{count} stay: {reason}" for reason, count in told["stays"].items()]
    return out or ["nothing runs there"]
