"""Whether profiles are of the model that the deployment serves, as far as that can be seen."""

from pathlib import Path

from toolkit.launch.errors import LaunchError
from toolkit.launch.model import ModelFacts, read_model
from toolkit.plan.errors import PlanError
from toolkit.resources import profiles_dir
from toolkit.settings.deployment import Deployment


def check(deployment: Deployment, *profiles: str | None) -> None:
    """Compare folders of `toolkit profile` (`embedded`: the shipped one) with the model; what is no
    folder is passed over, and so is a model that is not on this machine.

    PlanError: a profile of another model. ProfileError: a damaged one.
    """
    for text in dict.fromkeys(profiles):
        folder = profiles_dir() / "embedded" if text == "embedded" else Path(text or "")
        if text and folder.is_dir():
            _compare(deployment, text, folder)


def _compare(deployment: Deployment, text: str, folder: Path) -> None:
    from toolkit.profile_folder.check import problems
    from toolkit.profile_folder.store import read

    profile, _ = read(folder)
    try:
        model = read_model(deployment)
    except LaunchError:
        if text == "embedded" and deployment.model.path != "embedded":
            raise PlanError(
                f"the embedded model's profile says nothing of {deployment.model.path}: give "
                "--cost, a folder of `toolkit profile` or a YAML file of coefficients"
            ) from None
        return
    wrong = problems(
        profile,
        fingerprint=_fingerprint(model),
        layers=model.moe_layers,
        experts=model.experts,
        top_k=model.top_k,
    )
    if wrong:
        raise PlanError(f"{text}: {wrong[0]}")


def _fingerprint(model: ModelFacts) -> str | None:
    from toolkit.fingerprint import model_fingerprint

    if not model.weights_here:
        return None
    try:
        return model_fingerprint(model.path)
    except (OSError, ValueError):
        return None
