"""Predictors of output lengths. One file each, a registry here."""

from collections.abc import Callable

from toolkit.policies.predictors.base import Flight, PlacedPrediction, Predictor
from toolkit.policies.predictors.errors import Errors
from toolkit.policies.predictors.exact_match import ExactMatch
from toolkit.policies.predictors.learned import Learned
from toolkit.policies.predictors.oracle import Oracle
from toolkit.policies.predictors.outlook import Outlook
from toolkit.policies.predictors.survival import Survival

__all__ = [
    "PREDICTORS",
    "Errors",
    "ExactMatch",
    "Flight",
    "Learned",
    "Oracle",
    "Outlook",
    "PlacedPrediction",
    "Predictor",
    "Survival",
    "check_predictor",
    "make_predictor",
]

PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "survival": Survival,
    "exact_match": ExactMatch,
    "learned": Learned,
    "oracle": Oracle,
}


def check_predictor(name: str) -> str:
    """The name of a predictor. ValueError: unknown name."""
    if name not in PREDICTORS:
        raise ValueError(f"unknown predictor {name!r}; known: {', '.join(PREDICTORS)}")
    return name


def make_predictor(name: str) -> Predictor:
    """A fresh predictor with its own defaults. ValueError: unknown name."""
    return PREDICTORS[check_predictor(name)]()
