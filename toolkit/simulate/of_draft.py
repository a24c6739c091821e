"""The draft of a deployment file, as the simulator has it."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.launch.errors import LaunchError
from toolkit.launch.model import read_model
from toolkit.settings.deployment import Deployment
from toolkit.settings.systems import systems_of
from toolkit.simulate.costs import accepted_of
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.drafting import Drafting
from toolkit.simulate.errors import SimulateError


@dataclass(frozen=True)
class DraftCosts:
    """What is known of steps with a draft. `accepted`: tokens that one gives a request in the mean,
    None: nobody says; `share`: as of `Drafting`, None: one layer of the model's; `measured`: the
    costs are of steps with a draft."""

    accepted: float | None = None
    share: float | None = None
    measured: bool = False

    @classmethod
    def of(cls, cost: CostModel, accepted: float | None, share: float | None) -> DraftCosts:
        """What is said, and what the costs say."""
        measured = accepted_of(cost)
        return cls(accepted or measured, share, measured is not None)


UNKNOWN = DraftCosts()


def drafting_of(deployment: Deployment, costs: DraftCosts) -> Drafting | None:
    """None where it has no draft.

    SimulateError: costs of steps with a draft for a deployment without one, or nobody says how
    often the draft is right, or what it takes.
    """
    draft = deployment.speculative
    if draft is None:
        if "speculative decoding" in systems_of(deployment):
            raise SimulateError(
                "a draft in a role's own args is not simulated: write section `speculative`"
            )
        if costs.measured:
            raise SimulateError(
                "these costs were measured with a draft and the deployment has none: give costs "
                "that were measured without (--cost)"
            )
        return None
    if costs.accepted is None:
        raise SimulateError(
            "speculative: how many tokens does a step give a request? Measure it (`toolkit "
            "profile` of this file, then --cost FOLDER), or say it with --accepted"
        )
    most = draft.steps + 1
    if not 1 <= costs.accepted <= most:
        raise SimulateError(
            f"--accepted {costs.accepted:g}: a step of this draft gives a request 1 to {most} "
            f"tokens (speculative.steps is {draft.steps})"
        )
    share = costs.share
    if costs.measured and share is not None:
        raise SimulateError(
            "--draft-share: these costs are of steps with a draft already, its passes are in them: "
            "leave it out"
        )
    if share is None and not costs.measured:
        share = _one_layer(deployment)
    return Drafting(
        accepted=costs.accepted, verified=draft.tokens or most, passes=draft.steps, share=share
    )


def _one_layer(deployment: Deployment) -> float:
    try:
        layers = read_model(deployment).layers
    except LaunchError as error:
        raise SimulateError(
            f"speculative: what does a pass of the draft take? Say it with --draft-share ({error})"
        ) from error
    if not layers:
        raise SimulateError(
            "speculative: what does a pass of the draft take? Say it with --draft-share: the "
            "model's config.json says no num_hidden_layers"
        )
    return 1 / layers
