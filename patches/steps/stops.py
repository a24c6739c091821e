"""When a batch stood still while others ran, noted on the batch."""

from dataclasses import dataclass

from patches.sglang_types import Batch

_STOPS = "_toolkit_stops"


@dataclass(frozen=True, slots=True)
class Stop:
    """Seconds of the monotonic clock; `cpu_s`: CPU time of the scheduler's thread meanwhile.
    `layers`: how many of the model's the batch had behind it."""

    began: float
    ended: float
    cpu_s: float
    layers: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def stops_of(batch: Batch) -> list[Stop]:
    """In the forward of a `ScheduleBatch` that runs, or ran last; [] where it was not stopped."""
    stops: list[Stop] = getattr(batch, _STOPS, [])
    return [stop for stop in stops if stop.began >= batch.launch_ts]


def note(batch: Batch, stop: Stop) -> None:
    setattr(batch, _STOPS, [*stops_of(batch), stop])
