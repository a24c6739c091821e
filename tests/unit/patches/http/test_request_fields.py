"""The checks of a request read no field that is not in the patch's contract."""

import ast
import inspect

from patches.http import request_guard, request_values
from patches.http.request_values import REQUEST_FIELDS, SAMPLING_FIELDS


def read_of(name: str) -> set[str]:
    """The attributes that any function there reads of its variable `name`."""
    tree = ast.parse(inspect.getsource(request_values))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    }


def test_every_field_that_is_read_is_promised() -> None:
    assert read_of("request") <= set(REQUEST_FIELDS)
    assert read_of("params") <= set(SAMPLING_FIELDS)
    assert len(read_of("request")) > 15 and len(read_of("params")) > 12


def test_the_promises_are_in_the_contract() -> None:
    named = {symbol.rsplit(".", 1)[1] for symbol in request_guard.PATCH.requires}
    assert named >= {*REQUEST_FIELDS, *SAMPLING_FIELDS}
