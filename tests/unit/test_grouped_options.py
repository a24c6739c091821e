"""Dataclasses as groups of a command's options."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from toolkit.cli.grouped import grouped


@dataclass(frozen=True)
class Much:
    file: Annotated[str, typer.Argument(help="A file.")]
    factor: Annotated[float, typer.Option(min=0, help="A factor.")] = 1.5
    words: Annotated[list[str] | None, typer.Option(help="Words.")] = None


@dataclass(frozen=True)
class Little:
    loud: Annotated[bool, typer.Option("--loud", help="Whether.")] = False


def app() -> typer.Typer:
    made = typer.Typer(rich_markup_mode=None)

    @made.command()
    @grouped
    def command(much: Much, little: Little) -> None:
        """What it does."""
        typer.echo(f"{much} {little}")

    return made


def said(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app(), list(arguments))
    return done.exit_code, done.output


def test_each_group_gets_its_options() -> None:
    given = said("a", "--factor", "2", "--words", "x", "--words", "y", "--loud")
    assert given == (0, f"{Much('a', 2.0, ['x', 'y'])} {Little(True)}\n")
    assert said("a") == (0, f"{Much('a')} {Little()}\n")


def test_what_typer_checks_is_checked() -> None:
    assert said()[0] == 2, "an argument without a default is needed"
    assert said("a", "--factor", "-1")[0] == 2
    status, text = said("--help")
    assert status == 0
    for words in ("What it does.", "--factor", "A factor.", "[default: 1.5", "--loud"):
        assert words in text
