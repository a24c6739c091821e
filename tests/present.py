"""What a test knows to be there."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which must not be None."""
    assert value is not None
    return value
