"""Experts placed by the profile that a deployment file names, for the suite's arms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.bench.suite.expert_questions import BY_AFFINITY, BY_LOAD, LINEAR, PlacedExperts
from toolkit.bench.suite.questions import NO_PROFILE

if TYPE_CHECKING:
    from toolkit.settings.deployment import Deployment

LIMIT_S = 60.0


def place_experts(deployment: Deployment, folder: Path) -> PlacedExperts:
    """Of the decode role; the files lie in the folder, which is there. Where none can be made: why.

    LaunchError: no such profile, or a damaged one.
    """
    from toolkit.launch.expert_maps import REDUNDANT
    from toolkit.launch.profile_needs import read_locality
    from toolkit.profile.placing import EpConfig, place, save
    from toolkit.profile_folder.errors import ProfileError
    from toolkit.profile_folder.store import read
    from toolkit.settings.flags import flag_of

    needs, decode = read_locality(deployment), deployment.decode
    if needs is None:
        return PlacedExperts(why=NO_PROFILE)
    if decode.ep < 2:
        return PlacedExperts(why="one rank has all experts")
    flags = {flag_of(key): value for key, value in decode.args.items()}
    layout = EpConfig(decode.ep, int(flags.get(REDUNDANT, 0)), decode.ep // decode.nodes or 1)
    files: dict[str, str] = {}
    loads: dict[str, tuple[float, float]] = {}
    try:
        profile, arrays = read(needs.folder)
        for kind in (LINEAR, BY_LOAD, BY_AFFINITY):
            row, found = place(profile, arrays, layout, kind, 0, LIMIT_S)
            loads[kind] = row.balance, row.gpu_cut
            if found is not None and kind != LINEAR:
                path = folder.resolve() / f"experts-{kind}.json"
                save(profile, found, path)
                files[kind] = str(path)
    except (ImportError, ProfileError, ValueError) as error:
        return PlacedExperts(why=f"no placement by {needs.folder}: {error}")
    return PlacedExperts(files, loads=loads)
