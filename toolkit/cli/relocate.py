"""`toolkit relocate`."""

import typer

from toolkit.cli.meant import RUN, operator


def relocate(
    workers: list[str] = typer.Argument(
        None,
        help="Workers with `relocate: true`, or their URLs.",
        show_default="all decode workers of the run",
    ),
    kind: str = typer.Option(
        "joint",
        help="joint, eplb, gimbal, milp, linear, gimbal@paper; with Gimbal's anchor and threshold: "
        "gimbal@ANCHOR:SIGMAS, gimbal@paper:ANCHOR:SIGMAS.",
    ),
    every: int = typer.Option(3000, help="Decode steps between two decisions."),
    tokens: int = typer.Option(8192, help="Sampled tokens that a decision takes."),
    share: float = typer.Option(0.1, help="Share of the requests that is sampled."),
    drift: float = typer.Option(0.05, help="How much less even than before wakes it sooner."),
    expert_share: float = typer.Option(0.5, help="Of a decode step's time, that of its experts."),
    stall_ms: float = typer.Option(0.0, help="Longest hold-up; 0: a step, or one expert's move."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say what it would do, and move nothing."
    ),
    once: bool = typer.Option(False, "--once", help="One decision, then end."),
    port: int = typer.Option(0, help="Of its status, orders and metrics; 0: any."),
    run: str = RUN,
) -> None:
    """Watch servers' traffic and move their experts when that saves more than it costs."""
    import asyncio
    import json
    import logging

    from toolkit.limited_logs import limit_all
    from toolkit.placement.online import RelocationSettings
    from toolkit.relocate.serve import serve

    if not 0 < share <= 1:
        raise typer.BadParameter("above 0 and at most 1", param_hint="--share")
    try:
        settings = RelocationSettings(kind, every, tokens, max(tokens, 65536), drift, expert_share)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    servers = {word: word.rstrip("/") for word in workers or () if "://" in word}
    names = [word for word in workers or () if word not in servers]
    if names or not servers:
        orders = operator(run)
        servers |= {name: orders.url_of(name) for name in names or orders.workers("decode")}
    if not servers:
        raise typer.BadParameter("the run has no decode workers: name those that are meant")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    limit_all()
    asyncio.run(
        serve(
            servers, settings, share=share, stall_s=stall_ms / 1000, dry_run=dry_run,
            port=port, once=once, say=lambda told: print(json.dumps(told), flush=True),
        )
    )  # fmt: skip
