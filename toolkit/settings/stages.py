"""`stages`: ranges of lengths of requests, and the decode servers or ranks of each."""

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.policies.stages.layout import Layout
from toolkit.settings.section import Count, Section, key


class Stage(Section):
    """One stage: requests of at most `upto` KV tokens that no stage before it takes. In the
    router's file `replicas` are DP ranks."""

    upto: Count | None = key(None, "its longest requests, in KV tokens; unset: the last stage")
    replicas: Count = key(1, "its servers, or DP ranks where all are counted")


def with_replicas(role: Any) -> Any:
    """A role as it stands in the file, with as many replicas as its stages have, where it says no
    other number. What is wrong with it is for its checks to say."""
    if not isinstance(role, Mapping) or "replicas" in role or not role.get("stages"):
        return role
    stages = role["stages"]
    if not isinstance(stages, list | tuple):
        return role
    counts = [
        each.get("replicas", 1) if isinstance(each, Mapping) else getattr(each, "replicas", 1)
        for each in stages
    ]
    if not all(isinstance(count, int) for count in counts):
        return role
    return {**role, "replicas": max(1, sum(counts))}


def check_shape(stages: Sequence[Stage]) -> None:
    """ValueError: the stages are no `Layout`."""
    Layout.of((stage.upto, stage.replicas) for stage in stages)


def layout_of(stages: Sequence[Stage], replicas: int, dp: int, dp_attention: bool) -> Layout:
    """The stages in DP ranks. Their `replicas` are servers, or, where they are as many as the
    servers have DP ranks, these. ValueError: they are neither as many, or ranks of a server that
    takes its steps with all of them together."""
    count = sum(stage.replicas for stage in stages)
    if count == replicas:
        return Layout.of((stage.upto, stage.replicas * dp) for stage in stages)
    if count != replicas * dp:
        ranks = f" (or {replicas * dp} DP ranks)" if dp > 1 and not dp_attention else ""
        raise ValueError(
            f"stages: have {count} replicas in all, but the role has {replicas}{ranks}: make them "
            "as many, or leave the role's replicas out"
        )
    if dp_attention:
        raise ValueError(
            f"stages: the {dp} DP ranks of a server with dp_attention take every step together, so "
            f"that they cannot be of several stages: count servers, {replicas} in all"
        )
    return Layout.of((stage.upto, stage.replicas) for stage in stages)
