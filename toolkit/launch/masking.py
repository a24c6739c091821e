"""What looks like a secret is not shown: in plans, dry runs, and commands.

Only the process itself gets the value. Names decide (`HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`,
`--ssl-keyfile-password`), and passwords inside URLs are masked whatever the name.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
_ENDS = ("key", "token", "secret", "password", "passwd", "passphrase", "credential", "auth")
_PARTS = frozenset(
    {*_ENDS, *(f"{word}s" for word in _ENDS), "pwd", "pass", "bearer", "cookie", "private"}
)
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/@\s]+@")


def is_secret(name: str) -> bool:
    """True when a variable or a flag with this name may hold a secret. `PWD` and
    `TOKENIZERS_PARALLELISM` do not, `max-total-tokens` might: see `masked`."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    if words == ["pwd"]:
        return False
    return any(word in _PARTS or word.endswith(_ENDS) for word in words)


def masked(name: str, value: str) -> str:
    """The value as it may be shown. A plain number under a plural (`MAX_TOKENS=8`) is a count."""
    if is_secret(name):
        counts = name.lower().rstrip("s") != name.lower() and re.fullmatch(r"[0-9.]+", value)
        return value if counts or value == "" else MASK
    return _URL.sub(rf"\g<scheme>{MASK}@", value)


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it may be shown."""
    return {name: masked(name, value) for name, value in env.items()}


def masked_argv(argv: Sequence[str]) -> list[str]:
    """A command as it may be shown: values of flags, until the next flag."""
    shown, flag = [], ""
    for arg in argv:
        if arg.startswith("--"):
            flag, equals, value = arg.partition("=")
            shown.append(flag + equals + masked(flag, value))
        else:
            shown.append(masked(flag, arg))
    return shown


def masked_plan(data: Mapping[str, Any]) -> dict[str, Any]:
    """A plan (`Plan.to_json`) as it may be shown or written to a file."""
    shown = dict(data)
    shown["workers"] = [_process(worker) for worker in data["workers"]]
    shown["routers"] = [_process(router) for router in data["routers"]]
    return shown


def _process(data: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(data) | {"env": masked_env(data["env"])}
    for key in ("argv", "command"):
        if key in data:
            shown[key] = masked_argv(data[key])
    return shown
