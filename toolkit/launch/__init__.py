"""Start and supervise a deployment: one file in, running workers and a router out.

`deployment` (what the user wrote) -> `plan` (what will run) -> `checks` (is it possible) ->
`supervisor` (make it so, and leave nothing behind). Nothing heavy is imported here: the command
line and the guard process import this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.launch.running import Running, running

__all__ = ["Running", "running"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from toolkit.launch import running as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
