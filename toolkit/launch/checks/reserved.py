"""Flags under `args` that are not the user's to set there, however they are written.

A key becomes `--KEY VALUE` on a command line, and argparse is generous: it takes `--KEY=VALUE`, and
the beginning of a flag's name where no other begins so. Both would get around a key of the file,
and so around the router's checks; so keys are read here as argparse reads them.
"""

import re
from collections.abc import Mapping
from typing import Any

from toolkit.launch.errors import Problem
from toolkit.settings.flags import flag_of

KEY = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_-]*")
FLAG = re.compile(r"--[A-Za-z]")
IN_PS = "everybody on the machine could read it in `ps`"
PRIVATE = "keep workers on a private address; the router checks keys (router.api_key_env)"

# Flags that follow from the deployment file's own keys: flag -> where to set it instead ("." before
# a key of the role itself), or, with a space in it, what to do.
WORKER = {
    "model-path": "model.path",
    "model": "model.path",
    "device": "device",
    "host": "hosts",
    "port": ".port",
    "tp": ".tp",
    "tp-size": ".tp",
    "tensor-parallel-size": ".tp",
    "dp": ".dp",
    "dp-size": ".dp",
    "data-parallel-size": ".dp",
    "ep": ".ep",
    "ep-size": ".ep",
    "expert-parallel-size": ".ep",
    "enable-dp-attention": ".dp_attention",
    "nnodes": ".nodes",
    "node-rank": ".nodes",
    "dist-init-addr": ".nodes",
    "nccl-init-addr": ".nodes",
    "disaggregation-mode": "mode",
    "disaggregation-transfer-backend": "transfer.backend",
    "disaggregation-bootstrap-port": ".bootstrap_port",
    "disaggregation-ib-device": "transfer.ib_device",
    "served-model-name": "model.served_name",
    "api-key": PRIVATE,
    "admin-api-key": PRIVATE,
    "ssl-keyfile-password": f"use a key file without a password: {IN_PS}",
    "config": "put the flags of that file into args, where they are checked",
}

WHOLE = frozenset({"ssl-keyfile"})
"""Flags of SGLang that begin the name of a reserved one."""

ROUTER = {
    "host": "router.host",
    "port": "router.port",
    "worker-urls": "mode",
    "pd-disaggregation": "mode",
    "prefill": "mode",
    "decode": "mode",
    "api-key": "router.api_key_env",
    "control-plane-api-keys": f"leave it out, router.api_key_env closes these endpoints: {IN_PS}",
}


def problems(where: str, args: Mapping[str, Any], reserved: Mapping[str, str]) -> list[Problem]:
    """What is wrong with the keys and values of `args` at `where` (such as `decode.args`)."""
    found = []
    role = where.partition(".")[0]
    for key, value in args.items():
        at = f"{where}.{key}"
        flag = flag_of(key)
        meant = [flag] if flag in reserved else [r for r in reserved if r.startswith(flag)]
        if flag and meant and flag not in WHOLE:
            what = "is set by the launcher"
            if flag not in reserved:
                what = f"argparse takes it for --{meant[0]}, which {what}"
            found.append(Problem(at, what, _repair(role, reserved[meant[0]])))
        elif not KEY.fullmatch(key):
            repair = (
                f"write {flag}: VALUE" if flag and "=" in key else "write the flag's name alone"
            )
            found.append(Problem(at, "is no name of a flag", repair))
        elif any(FLAG.match(text) for text in _texts(value)):
            what = f"the value {value!r} would be read as another flag"
            found.append(Problem(at, what, "give that flag a key of its own"))
    return found


def _repair(role: str, place: str) -> str:
    if " " in place:
        return place
    if place.startswith("."):
        return f"set {role}{place} instead"
    return f"set {place} {'instead' if '.' in place else 'at the top of the file instead'}"


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, str)]
