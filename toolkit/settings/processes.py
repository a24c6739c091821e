"""Sections `timeouts`, `restart` and `logs`: what the launcher does with processes."""

from typing import Annotated

from pydantic import Field

from toolkit.settings.router.bounds import Stuck
from toolkit.settings.section import Natural, Seconds, Section, key


class Timeouts(Section):
    """Seconds."""

    start: Seconds = key(600, "until every process is ready, seconds")
    generation: Seconds = key(120, "for the generation that proves the whole path, seconds")
    drain: Seconds = key(60, "for running requests when the deployment stops, seconds")
    stop: Seconds = key(15, "between asking a process to end and ending it, seconds")


class _Again(Section):
    max_restarts: Natural = key(5, "deaths within `window` that a start-up survives")
    window: Seconds = key(300, "over how long deaths are counted, seconds")
    first_delay: Seconds = key(1, "delay before the first restart; it doubles each time, seconds")
    max_delay: Seconds = key(30, "the longest such delay, seconds")
    rest_first: Seconds = key(
        60, "first delay of a process that rests; it doubles each time, seconds"
    )
    rest_max: Seconds = key(600, "the longest rest, seconds")


class Restart(Stuck, _Again):
    """A process that dies is started again after `first_delay * 2^n` s, at most `max_delay`. The
    (`max_restarts` + 1)-th death within `window` s ends a start-up. Later it rests: it is tried
    after `rest_first * 2^n` s, at most `rest_max`, until it has been ready for `window` s.

    A worker that holds work and makes no step for `stuck_s` s is ended and started again. Where
    the file does not say `stuck_s` or `announced_s`, the device does
    (`toolkit.launch.wait_limits.bounds`)."""

    NEVER_EMPTY = frozenset(_Again.model_fields)


class LogFiles(Section):
    """One log a process, only for its owner to read: it rotates when it has `max_mib` MiB, and
    `keep` older ones stay beside it (`NAME.log.1` is the youngest of them)."""

    max_mib: Annotated[float, Field(gt=0)] = key(32, "size at which a log rotates, MiB")
    keep: Annotated[int, Field(ge=0, le=100)] = key(
        3, "older logs that stay; `NAME.log.1` is the youngest"
    )
