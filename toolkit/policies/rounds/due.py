"""When a round of assignments is due. Pure: no clock and no timer, those are the home's."""

TICK_S = 0.25
"""A round takes place at least this often while somebody waits."""
READING_PAUSE_S = 0.01
"""Readings of many ranks come one after the other: one round looks at all of them."""


class Rounds:
    """One round for all that is new by then, and none while nobody waits.

    At once when a prefill was done, a request ended, or a worker came or went; READING_PAUSE_S
    after a reading; TICK_S after a round that left somebody waiting. Each of the three answers
    whether `due` is now earlier than it was: then the home sets its timer anew.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        """When the next round is to take place; None for none."""

    def notified(self, now: float, waiting: int) -> bool:
        """Something has changed that may let one of the `waiting` go, or one more waits."""
        return waiting > 0 and self._plan(now)

    def reading(self, now: float, waiting: int) -> bool:
        """A rank has published its load."""
        return waiting > 0 and self._plan(now + READING_PAUSE_S)

    def begun(self) -> None:
        """The round that was due takes place."""
        self.due = None

    def over(self, now: float, waiting: int) -> bool:
        """It has; so many still wait."""
        return waiting > 0 and self._plan(now + TICK_S)

    def _plan(self, at: float) -> bool:
        if self.due is not None and self.due <= at:
            return False
        self.due = at
        return True
