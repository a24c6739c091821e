"""How many of the workers prefill and how many decode."""

from typing import NamedTuple

from toolkit.plan.errors import PlanError
from toolkit.settings.deployment import Deployment
from toolkit.settings.document import Document, get, put
from toolkit.settings.stages import with_replicas


class Split(NamedTuple):
    """Replicas of each role."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"


def splits(deployment: Deployment, workers: int | None = None) -> tuple[Split, ...]:
    """All of so many `workers`; without a number those that use exactly the GPUs that the file's
    replicas use. From the fewest prefill workers on.

    PlanError: fewer than two workers, or more than the file has hosts for.
    """
    prefill, decode = deployment.prefill, deployment.decode
    if workers is not None:
        if workers < 2:
            raise PlanError(f"{workers} worker: a prefill and a decode worker are two at least")
        found = [Split(n, workers - n) for n in range(1, workers)]
    else:
        total = prefill.replicas * prefill.ranks + decode.replicas * decode.ranks
        found = []
        for n in range(1, (total - decode.ranks) // prefill.ranks + 1):
            left, over = divmod(total - n * prefill.ranks, decode.ranks)
            if not over:
                found.append(Split(n, left))
    fitting = tuple(each for each in found if _fits(deployment, each))
    if not fitting:
        raise PlanError(
            f"{workers} workers do not fit the hosts and gpus that the file gives its roles: "
            "remove prefill.hosts, decode.hosts and gpus, or leave --workers out"
        )
    return fitting


def split_of(document: Document) -> Split:
    """That of a file."""
    prefill, decode = (with_replicas(document.get(role) or {}) for role in ("prefill", "decode"))
    return Split(prefill.get("replicas") or 1, decode.get("replicas") or 1)


def with_split(document: Document, split: Split) -> Document:
    """The file with that split; hosts that roles name are dealt out anew, prefill first. Stages of
    another number of decode workers go."""
    hosts = _hosts(document)
    if split_of(document).decode != split.decode and get(document, "decode", "stages"):
        document = put(document, ("decode", "stages"), None)
    for role, count in zip(("prefill", "decode"), split, strict=True):
        document = put(document, (role, "replicas"), count)
        if hosts:
            taken = count * (get(document, role, "nodes") or 1)
            document = put(document, (role, "hosts"), hosts[:taken])
            hosts = hosts[taken:]
    return document


def nearest(found: tuple[Split, ...], wanted: Split) -> Split:
    """The one with the most similar share of prefill workers."""
    share = wanted.prefill / (wanted.prefill + wanted.decode)
    return min(found, key=lambda each: (abs(each.prefill / sum(each) - share), each))


def _hosts(document: Document) -> list[str]:
    both = [get(document, role, "hosts") for role in ("prefill", "decode")]
    return [host for hosts in both for host in hosts] if all(both) else []


def _fits(deployment: Deployment, split: Split) -> bool:
    """Whether the hosts and GPUs that the file names allow it."""
    roles = (deployment.prefill, deployment.decode)
    same = split == (roles[0].replicas, roles[1].replicas)
    if any(role.gpus is not None for role in roles):
        return same
    named = [role.hosts for role in roles]
    if not any(named):
        return True
    if not all(named):
        return same
    needed = sum(role.nodes * count for role, count in zip(roles, split, strict=True))
    return needed <= sum(len(hosts or ()) for hosts in named)
