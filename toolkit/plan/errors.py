"""What the planner refuses."""

from __future__ import annotations


class PlanError(Exception):
    """A deployment, an objective or a budget that nothing can be planned for; says how to mend."""


class Spent(PlanError):
    """The simulations that may be run are used up."""
