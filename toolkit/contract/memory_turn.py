"""Whose memory must have been taken before a worker takes its own: workers that share a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class MemoryTurn(BaseModel):
    """`folder` is where each rank leaves a file (`file`) once it has all the memory that it starts
    with. `own`: this worker. `after`: the workers before it, with how many ranks each has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str
    own: str
    after: dict[str, int] = {}

    @property
    def text(self) -> str:
        """For TURN_VARIABLE."""
        return self.model_dump_json()

    @classmethod
    def read(cls, text: str) -> MemoryTurn:
        """What `text` wrote. ValueError: something else."""
        return cls.model_validate_json(text)

    def file(self, life: int, rank: int) -> str:
        """Name of the file of one rank, by its pid, in one life of the worker, by the pid of the
        process that all its ranks have as their parent."""
        return f"{self.own}.{life}.{rank}"

    def waits_for(self, files: Iterable[str]) -> list[str]:
        """The workers before it of which no life has had all its memory, by what is in `folder`."""
        lives = Counter(file.rsplit(".", 1)[0] for file in files)
        done: dict[str, int] = {}
        for life, ranks in lives.items():
            name = life.rsplit(".", 1)[0]
            done[name] = max(done.get(name, 0), ranks)
        return [name for name, ranks in self.after.items() if done.get(name, 0) < ranks]
