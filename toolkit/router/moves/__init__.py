"""Live migration: a request that decodes on one rank goes on on another."""

from toolkit.router.moves.base import GoOn, Move, MoveOutcome
from toolkit.router.moves.live import Kind, Live
from toolkit.router.moves.moves import Moves, described

__all__ = ["GoOn", "Kind", "Live", "Move", "MoveOutcome", "Moves", "described"]
