"""When the watch calls for a refit, and when a refit is worth its move."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DriftRules:
    """`recent`: requests in the reservoir, and their mean age in requests once it is full.
    `window`: the last requests over which the fit is averaged. `tolerance`: fall of the mean
    cosine that is a drift. `min_gain`: rise of the held-out cosine that makes a refit worthwhile.
    `wait_limit`: requests between two refits. `crowding`: a drift, too, is when the nearest worker
    of a typical request has this many times the share of the requests that it had.
    ValueError: values that make no sense.
    """

    recent: int = 512
    window: int = 128
    tolerance: float = 0.05
    min_gain: float = 0.02
    wait_limit: int = 256
    crowding: float = 1.5

    def __post_init__(self) -> None:
        if self.recent < 1 or self.window < 2 or self.wait_limit < 0:
            raise ValueError(
                f"recent = {self.recent}, window = {self.window}, wait_limit = {self.wait_limit}: "
                "at least 1, 2 and 0 requests"
            )
        if not (self.tolerance >= 0 and self.min_gain >= 0 and self.crowding > 1):
            raise ValueError(
                f"tolerance = {self.tolerance} and min_gain = {self.min_gain} must be >= 0, "
                f"crowding = {self.crowding} above 1"
            )

    def crowded(self, workers: float | None, before: float | None) -> bool:
        """Whether so few workers are in use that those in use `before` were markedly more."""
        return workers is not None and before is not None and before > self.crowding * workers
