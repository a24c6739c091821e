"""What steps take: interchangeable models of hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from toolkit.resources import profiles_dir
from toolkit.settings.yaml_lines import read_document
from toolkit.simulate.costs.links import Links
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.fleet import Machine

if TYPE_CHECKING:
    from toolkit.simulate.costs.base import CostModel


def machine_of(cost: CostModel) -> Machine:
    """What workers of one machine lose beside each other, where the model says so."""
    found = getattr(cost, "machine", None)
    return found if isinstance(found, Machine) else Machine()


def per_slice_of(cost: CostModel) -> float:
    """Seconds that a look between two slices of a prefill takes; 0 where the model says nothing."""
    prefill = getattr(cost, "prefill", None)
    return float(getattr(prefill, "per_slice", 0.0))


def links_of(cost: CostModel) -> Links | None:
    """What crosses between GPUs takes, where the model says so."""
    found = getattr(cost, "links", None)
    return found if isinstance(found, Links) else None


def accepted_of(cost: CostModel) -> float | None:
    """Tokens that a step gave a request, where the costs are of steps with a draft."""
    found = getattr(cost, "accepted", None)
    return None if found is None else float(found)


def mixed_of(cost: CostModel) -> tuple[float, float]:
    """What mixed lengths cost a decode step: seconds for each KV token by which a rank's longest
    request is above the mean of its batch, and at most how many times the attention; 0 and 0 where
    the model says nothing."""
    found = getattr(cost, "decode", None) or getattr(cost, "spec", None)
    mixed = float(getattr(found, "mixed", 0.0))
    return mixed, float(getattr(found, "mixed_most", 0.0)) if mixed else 0.0


def minds_lengths(cost: CostModel) -> bool:
    """Whether a decode step takes longer where the lengths of its batch differ."""
    return mixed_of(cost)[0] > 0


def load(text: str) -> CostModel:
    """`embedded`, a profile's folder, or a YAML file: coefficients (`costs.linear.Linear`), or a
    model and a machine under `aic` (`costs.aic.AicSpec`).

    SimulateError: none of these, or not right; ProfileError: a damaged profile.
    """
    path = profiles_dir() / "embedded" if text == "embedded" else Path(text)
    if path.is_dir():
        from toolkit.simulate.costs.profiled import of_profile

        return of_profile(path)
    if not path.is_file():
        raise SimulateError(
            f"no cost model {text!r}: give `embedded`, a folder of `toolkit profile`, or a YAML "
            "file: decode, prefill and transfer coefficients in seconds, or `aic`"
        )
    from toolkit.simulate.costs.aic import Aic, AicSpec
    from toolkit.simulate.costs.linear import Linear
    from toolkit.simulate.documents import read

    class AicFile(BaseModel):
        model_config = ConfigDict(extra="forbid")
        aic: AicSpec

    data, _ = read_document(path)
    return Aic(read(path, AicFile).aic) if "aic" in data else read(path, Linear)
