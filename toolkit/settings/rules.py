"""When a key of a deployment file can act: under which `kind`, `mode`, `dispatch`, `device`.

A field names its rule where it is declared; `toolkit.settings.acting` judges by it.
"""

from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

Found = TypeVar("Found")
PD = "use mode: pd, or remove it"


@dataclass(frozen=True)
class KeyRule:
    """When a key of `router:` acts, and what to do where it does not.

    `kinds`: the routers that know what to do with it; `other`: what to say of another one, where
    that is more than to use one of these. `plain`: what to do in mode plain; empty where it acts
    there too. `late`: it acts only with `dispatch: late`."""

    kinds: tuple[str, ...]
    other: str = ""
    plain: str = ""
    late: bool = False


@dataclass(frozen=True)
class Device:
    """The only device on which a key acts, and what to say on the other one."""

    name: str
    why: str


OURS = KeyRule(("toolkit",))
BOTH = KeyRule(("toolkit", "sglang"))
EVERY = KeyRule(("toolkit", "sglang", "none"))
"""Also where there is no router: workers go by it, or its values are judged and not the key."""
EXPERTS = KeyRule(("toolkit",), plain=PD)
PARKS = KeyRule(("toolkit",), plain=PD, late=True)
CPU = Device("cpu", "only CPU workers share cores: remove it")
CUDA = Device("cuda", "device cpu has no GPUs: set device: cuda, or remove it")


def rules_of(section: type[BaseModel], kind: type[Found]) -> dict[str, Found]:
    """Key -> its rule of this kind; without the keys that have none."""
    return {
        name: rule
        for name, field in section.model_fields.items()
        for rule in field.metadata
        if isinstance(rule, kind)
    }
