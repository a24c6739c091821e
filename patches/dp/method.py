"""`--load-balance-method` with the names of our policies.

SGLang's own flag has fixed choices, and its name decides more than who picks the rank: under
`total_tokens` the DP controller owns the socket to which other nodes' ranks send their load
(`load_snapshot.py`, `_LOAD_AWARE_METHODS`), and decode workers ask for the rank of each prefill. So
a worker that is asked for one of ours runs SGLang's `total_tokens`, whose choice is replaced
(`patches.dp.controller`), and its processes learn the name from the environment.
"""

import os
from collections.abc import Sequence

from patches.base import refuse
from patches.dp import layout
from patches.sglang_types import ServerArgs
from toolkit.contract.variables import DP_POLICY_VARIABLE, DP_PROFILE_VARIABLE
from toolkit.policies.dp_method import SGLANGS, by_signature, check_method

FLAG = "--load-balance-method"
STANDS_FOR_OURS = "total_tokens"
INTERVAL = "--load-snapshot-publish-interval"
"""Decode steps; ours need every one, SGLang publishes each fifteenth unless told otherwise."""
SIDES = {"prefill": "prefill", "decode": "decode"}
"""`disaggregation_mode` -> the side of a policy; a plain server may have those of either."""


def chosen() -> str | None:
    """Our policy that this worker's DP controller is to use; None for SGLang's own method."""
    return os.environ.get(DP_POLICY_VARIABLE) or None


def has_profile() -> bool:
    """Whether this worker's DP controller may read signatures."""
    return bool(os.environ.get(DP_PROFILE_VARIABLE))


def follows_requests(name: str | None) -> bool:
    """Whether the policy is told of tokens and ends (`patches.dp.progress`)."""
    from toolkit.policies import make_policy

    return name is not None and make_policy(name).needs.following


def take_method(argv: Sequence[str], profile: bool = True) -> tuple[list[str], str | None]:
    """SGLang's flags as it understands them, and the name of our policy, if one was asked for.
    `profile`: see `check_method`.

    ValueError: neither SGLang nor we know the name.
    """
    flags, name = list(argv), None
    for at, flag in enumerate(flags):
        given, equals, value = flag.partition("=")
        if given != FLAG:
            continue
        place = at if equals else at + 1
        if not equals and place == len(flags):
            break  # without a value: SGLang says so
        value = value if equals else flags[place]
        check_method(value, profile=profile)
        name = None if value in SGLANGS else value
        if name is not None:
            flags[place] = f"{FLAG}={STANDS_FOR_OURS}" if equals else STANDS_FOR_OURS
    if name is not None and not any(flag.partition("=")[0] == INTERVAL for flag in flags):
        flags += [INTERVAL, "1"]
    return flags, name


def check_server(server_args: ServerArgs, name: str, ranks: int) -> None:
    """Whether a server with these (resolved) flags and DP ranks can use the policy. ValueError: why
    not."""
    if ranks < 2:
        raise ValueError(
            f"{FLAG} {name} chooses among DP ranks, and this worker has one: "
            "add --dp 2 or more, or leave it out"
        )
    if server_args.load_balance_method != STANDS_FOR_OURS:
        raise ValueError(
            f"{DP_POLICY_VARIABLE}={name} needs {FLAG} {STANDS_FOR_OURS}, not "
            f"{server_args.load_balance_method}: name the policy by {FLAG} itself"
        )
    if (server_args.tokenizer_worker_num or 1) > 1 and follows_requests(name):
        raise ValueError(
            f"{name} follows every request to its end, which several tokenizer workers do not see "
            "together: use br0, or --tokenizer-worker-num 1"
        )
    side = SIDES.get(server_args.disaggregation_mode)
    if by_signature(name) and side != "decode":
        raise ValueError(f"{name} needs signatures, which only decode workers are sent")
    check_method(name, side, profile=True)


def check_profile(folder: str) -> None:
    """Whether signatures can be read by this profile. ValueError: why not."""
    from toolkit.profile_folder.errors import ProfileError
    from toolkit.signatures.calibrated import calibrated

    try:
        calibrated(folder)
    except ProfileError as error:
        raise ValueError(f"{DP_PROFILE_VARIABLE}: {error}") from error


def adopt(argv: Sequence[str]) -> list[str]:
    """`take_method` for this worker and the processes that it will start; refuses a wrong name."""
    try:
        flags, name = take_method(argv, has_profile())
    except ValueError as error:
        refuse(str(error))
    if name is not None:
        os.environ[DP_POLICY_VARIABLE] = name
    return flags


def check_worker(server_args: ServerArgs) -> None:
    """Refuse a worker whose DP controller cannot use the policy, before it starts anything."""
    name = chosen()
    if name is None:
        return
    try:
        check_server(server_args, name, layout.of_server(server_args))
        if by_signature(name):
            check_profile(os.environ[DP_PROFILE_VARIABLE])
    except ValueError as error:
        refuse(str(error))
