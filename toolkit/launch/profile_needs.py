"""Expert locality (ELDR): a deployment's profile, and what it asks of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.model import from_folder
from toolkit.settings.deployment import Deployment

if TYPE_CHECKING:
    from toolkit.policies.stages.qoe import Qoe
    from toolkit.profile_folder.schema import Profile

KEY = "router.profile"


@dataclass(frozen=True)
class ProfileNeeds:
    """`router.profile` as it was read; `folder` is absolute."""

    folder: str
    profile: Profile

    @property
    def layers(self) -> tuple[int, ...]:
        """The mask's layers in the model's own numbering, ascending: what prefill records."""
        model = self.profile.model
        return tuple(sorted(model.layers[place] for place in self.profile.rho.mask))

    @property
    def fitted(self) -> int:
        """Requests that centroids can be fitted to: no more clusters than these."""
        return self.profile.data.requests - self.profile.data.held_out

    def to_json(self) -> dict[str, Any]:
        """Plain data for plan.json."""
        return {
            "profile": self.folder,
            "model": self.profile.model.name,
            "layers": list(self.layers),
            "fitted": self.fitted,
            "k": self.profile.centroids.k,
        }


def read_locality(deployment: Deployment) -> ProfileNeeds | None:
    """The deployment's profile; None when it names none.

    LaunchError: no such profile, or a damaged one.
    """
    text = deployment.router.profile
    if text is None:
        return None
    from toolkit.profile_folder.errors import ProfileError
    from toolkit.profile_folder.store import read
    from toolkit.resources import profiles_dir

    folder = profiles_dir() / text if text == "embedded" else from_folder(deployment, text)
    try:
        profile, _ = read(folder)
    except ProfileError as error:
        measure = f"measure it first: toolkit profile --deployment THIS_FILE --out {folder}"
        repair = "" if folder.exists() else measure
        raise LaunchError([Problem(KEY, str(error), repair)]) from error
    return ProfileNeeds(str(folder.absolute()), profile)


def usable_qoe(needs: ProfileNeeds | None) -> Qoe | None:
    """The profile's QoE fit; None where it has none by which moves could be weighed."""
    from toolkit.policies.stages.qoe import Qoe

    if needs is None or needs.profile.latency is None:
        return None
    try:
        return Qoe.of_profile(needs.profile.latency)
    except ValueError:
        return None
