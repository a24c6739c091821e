"""What the planner refuses."""

from toolkit.errors import ToolkitError


class PlanError(ToolkitError):
    """A deployment, an objective or a budget that nothing can be planned for; says how to mend."""


class Spent(PlanError):
    """The simulations that may be run are used up."""
