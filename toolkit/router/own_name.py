"""What this router calls itself where several send requests to the same workers."""

import os
import re
import secrets
import socket

from toolkit.contract.variables import ROUTER_NAME_VARIABLE


def own_name() -> str:
    """Made when the router starts, and handed down to all that it forks: so a decider that replaces
    another has the same name."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)[:32]
    made = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
    return os.environ.setdefault(ROUTER_NAME_VARIABLE, made)


def shown(name: str, admin: bool) -> str:
    """A router's name as an answer has it: to the admin as it is, to clients without the host."""
    return name if admin else name.rpartition("-")[2]
