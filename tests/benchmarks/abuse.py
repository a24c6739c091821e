"""What strangers, slow clients and sick workers can do to a router: no comparison, but counts.

A real router process with stand-in workers (`tests/standin`: SGLang's wire format, no model) over
loopback sockets. Five parts, each with routers of its own, `--part NAME` runs one alone:

- `bodies`: 10,000 fuzzed JSON bodies to the three endpoints (`abuse_json`), some with odd content
  types, encodings and chunked uploads.
- `frames`: 4,000 fuzzed HTTP frames from clients (`abuse_shapes`) and 1,000 from workers
  (`tests/standin/rude.py`), half of them prefills. `ambiguous_taken`: frames that got a 200 though
  their end can be read in two ways, or their framing is unknown.
- `slow`: 500 clients that send a byte a second and 24 that never end a 60 MiB body, beside normal
  traffic (8 streams at once). `slow_p99_ratio`: p99 of its time to first token with them / without,
  in blocks that alternate; geometric mean of the pairs with its 95 % interval. `slow_growth_mib`:
  the router's peak memory in all of it less that before. `slow_descriptors_failed`: of 100 streams
  at once, those that a router fails that was started with a soft limit of 64 descriptors.
- `sick`: one of three decodes answers 500, answers 429, is silent while its events flow, or ends
  in the middle of a stream without closing it, in turn. `sick_share`: the worst share of posts to
  decodes that still go to it after the first 10 s; `sick_failed`: clients without a right answer.
- `storm`: kills, stops (SIGSTOP, SIGCONT), silences and resets of two prefills and four decodes
  beside 3,000 requests, 400 at once. Every answer is compared with the stand-ins' function of the
  prompt: `storm_lost` did not come whole, `storm_wrong` are others. `storm_wait_ratio`: p99 by
  median of the wait for the first byte, where 400 clients queue for one prefill whose capacity
  stays the same while the health of a decode that nobody needs changes again and again.

`hangs`: no answer within 5 s (or an ordinary request beside the frames that gets none); `crashes`:
router processes that ended; `answers_500`: all of the router's, those in streams included, but not
what a rude worker says in its own stream; the first distinct ones are printed on standard error.
`stuck`: counters (in flight, queued, parked, running on workers) that do not go back to 0 after a
part. `growth_mib`: resident memory of the router after bodies or frames less that after a warm-up,
the larger. `mutations` and `mutation_deaths` are those of `tests.benchmarks.mutations`, real
workers, whose last line `--mutations FILE` reads; null without.

Nothing is asserted. `--quick` takes less than a minute and tells little of `sick` (its shares are
those after 2 s). Run as `python -m tests.benchmarks.abuse [--quick] [--part NAME] [--seed N]`.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from tests.benchmarks.abuse_parts.bodies import bodies
from tests.benchmarks.abuse_parts.frames import frames
from tests.benchmarks.abuse_parts.sick import sick
from tests.benchmarks.abuse_parts.slow import slow
from tests.benchmarks.abuse_parts.storm import storm
from tests.benchmarks.shared.common import Result, arguments

SUMMED = ("hangs", "crashes", "answers_500", "garbled", "stuck")
KEYS = (
    "bodies", "frames", "mutations", "mutation_deaths", *SUMMED, "growth_mib", "slow_p99_ratio",
    "sick_share", "sick_failed", "storm_lost", "storm_wrong", "storm_wait_ratio",
)  # fmt: skip

Part = Callable[[bool, int], Awaitable[dict[str, Any]]]
PARTS: dict[str, Part] = {
    "bodies": lambda quick, seed: bodies(400 if quick else 10_000, seed),
    "frames": lambda quick, seed: frames(300 if quick else 5_000, seed),
    "slow": lambda quick, seed: slow(*((1, 3.0) if quick else (6, 6.0))),
    "sick": lambda quick, seed: sick(*((2.0, 1.5) if quick else (10.0, 12.0)), seed),
    "storm": lambda quick, seed: storm(*((500, 5) if quick else (3_000, 40)), seed),
}


def main() -> None:
    args = arguments(
        __doc__,
        ("--part", {"choices": list(PARTS), "help": "this part alone"}),
        ("--seed", {"type": int, "default": 17, "help": "of what is random"}),
        ("--mutations", {"type": Path, "help": "the last line of tests.benchmarks.mutations"}),
    )
    result = Result()
    result.keys = dict.fromkeys(KEYS)
    if args.mutations is not None:
        told = json.loads(args.mutations.read_text().strip().splitlines()[-1])
        result.keys |= {name: told.get(name) for name in ("mutations", "mutation_deaths")}
    samples = 0
    for name, part in PARTS.items():
        if args.part not in (None, name):
            continue
        told = uvloop.run(part(args.quick, args.seed))
        print(f"{name}: {json.dumps(told)}", file=sys.stderr, flush=True)
        samples += _samples(told)
        _add(result.keys, name, told)
    result.emit(samples)


def _add(keys: dict[str, Any], part: str, told: dict[str, Any]) -> None:
    """Counts add up, memory is the larger; what is the part's own is named after it."""
    for name, value in told.items():
        if name in SUMMED:
            keys[name] = (keys[name] or 0) + value
        elif name == "growth_mib":
            keys[name] = max(keys[name] or 0.0, value)
            keys[f"{part}_growth_mib"] = value
        elif name in KEYS or name.startswith((f"{part}_", "ambiguous")):
            keys[name] = value
        else:
            keys[f"{part}_{name}"] = value


def _samples(told: dict[str, Any]) -> int:
    """Requests that a part has sent."""
    sent = [told.get(name, 0) for name in ("bodies", "frames", "storm_requests")]
    blocks = 2 * told.get("slow_requests", 0) * told.get("slow_pairs", 0)
    return int(sum(sent) + blocks + sum(told.get("sick_requests", {}).values()))


if __name__ == "__main__":
    main()
