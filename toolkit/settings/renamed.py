"""Keys that have another name now: the old one is refused, and the error names the new one."""

RENAMED: dict[str, dict[str, str]] = {"router.rebalance": {"patience": "wait_limit"}}
"""Section of the deployment file -> old key -> new key of that section. Keys of the three roles are
under `ROLE`; those of the router's own file as in section `router`. A test goes over all of it."""


def new_name(at: tuple[str | int, ...]) -> str | None:
    """The new name of the key at this place of a deployment file; None where it has no other."""
    names = [str(part) for part in at if not isinstance(part, int)]
    if names[:1] in (["prefill"], ["decode"], ["worker"]):
        names[0] = "ROLE"
    return RENAMED.get(".".join(names[:-1]), {}).get(names[-1]) if names else None
