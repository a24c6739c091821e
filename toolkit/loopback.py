"""Which addresses only this machine itself can reach, and what the others need."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether this name or address can only be this machine itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def is_own(host: str) -> bool:
    """Whether this address is one of this machine's: what goes there leaves it by no wire."""
    import psutil

    bare = host.strip("[]")
    addresses = (each for found in psutil.net_if_addrs().values() for each in found)
    return any(each.address.partition("%")[0] == bare for each in addresses)


def open_port(host: str) -> str:
    """What is wrong with a public port at `host` that asks nobody for a key, and how to mend it."""
    return (
        f"host {host} is not loopback and no client key is asked for: name keys in api_key_env or "
        "api_keys_file, or say `open: true` where something else keeps strangers away"
    )
