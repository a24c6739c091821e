"""Leave out patches that only make something faster, to see what each costs and brings.

`TOOLKIT_WITHOUT` names them with commas between (`env:` of a deployment file or of one role). Only
those that say what they gain can be left out: without any other a worker answers wrongly, hangs or
cannot be watched. A worker that is asked for what cannot be ends as one whose patches do not fit.
"""

from collections.abc import Sequence

from patches.base import Patch, PatchError
from toolkit.contract.variables import WITHOUT_VARIABLE


def left_out(patches: Sequence[Patch], asked: str) -> frozenset[str]:
    """The names in `asked`, the value of the variable.

    Raises:
        PatchError: one is no patch, or is needed: for what, and by which others.
    """
    names = frozenset(name.strip() for name in asked.split(",") if name.strip())
    known = {patch.name: patch for patch in patches}
    gaining = ", ".join(sorted(patch.name for patch in patches if patch.gain))
    for name in sorted(names):
        if name not in known:
            raise PatchError(
                f"{WITHOUT_VARIABLE}: {name!r} is no patch; those that can be left out are "
                f"{gaining}"
            )
        if not known[name].gain:
            raise PatchError(
                f"{WITHOUT_VARIABLE}: {name} cannot be left out: {known[name].why}"
                f"{_needed(name, known)}; those that can be are {gaining}"
            )
        by = [other.name for other in patches if name in other.needs and other.name not in names]
        if by:
            raise PatchError(
                f"{WITHOUT_VARIABLE}: {name} cannot be left out alone, {', '.join(by)} relies on "
                f"it: leave {' and '.join(by)} out too"
            )
    return names


def _needed(name: str, known: dict[str, Patch]) -> str:
    by = [other.name for other in known.values() if name in other.needs]
    return f" ({', '.join(by)} relies on it)" if by else ""
