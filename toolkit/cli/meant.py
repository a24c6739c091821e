"""Which run a command gives orders to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from toolkit.launch.operate import Operator

RUN: Any = typer.Option(
    None, help="Path or name of a run folder, or a deployment's name; default: what lives."
)


def operator(run: str | None) -> Operator:
    """Who gives orders to the one that is meant; where several live, it must be said which."""
    from toolkit.launch import runs
    from toolkit.launch.operate import Operator

    return Operator(runs.to_stop(run))
