"""Options in groups: a command takes a few dataclasses instead of dozens of parameters.

typer makes an option of each parameter of a function. `grouped` shows it the fields of the
dataclasses that a function takes, in their order, and hands the function the filled dataclasses.
A field is `name: Annotated[TYPE, typer.Option(...)] = DEFAULT`.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import typer


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """For functions all of whose parameters are such dataclasses, or typer's context."""
    hints = {name: kind for name, kind in get_type_hints(command).items() if name != "return"}
    groups = {name: kind for name, kind in hints.items() if kind is not typer.Context}
    plain = [name for name in hints if name not in groups]
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        for name in plain
    ]
    parameters += [each for kind in groups.values() for each in _parameters(kind)]

    @functools.wraps(command)
    def filled(**given: Any) -> None:
        made = {
            name: kind(**{each.name: given[each.name] for each in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **{name: given[name] for name in plain})

    filled.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    filled.__annotations__ = {each.name: each.annotation for each in parameters}
    return filled


def _parameters(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for each in fields(kind):
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        found.append(
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=hints[each.name],
            )
        )
    return found
