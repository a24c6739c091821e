"""Whose address it is: the unit by which clients without a key are told apart."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=4096)
def neighbours(address: str) -> str:
    """Whom an address stands for: itself, or the network of a site (/64), which has as many
    addresses as it likes."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4 or parsed.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
