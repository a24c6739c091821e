"""One step, in this process."""

import argparse
import importlib
import shlex
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.gpu import facts, record
from tests.gpu.context import Context
from tests.gpu.plan import STEPS


def _ended(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Unwinds, so that deployments are stopped on the way out."""
    raise SystemExit(143)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.one_step", description=__doc__)
    parser.add_argument("step", choices=[step.name for step in STEPS])
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _ended)
    context = Context(given.device, given.tiny, given.scratch)
    figures: dict[str, Any] = {}
    state, error, begin = "ok", "", time.monotonic()
    try:
        module = importlib.import_module(f"tests.gpu.steps.{given.step}")
        module.measure(context, figures)
    except Exception:
        state, error = "failed", traceback.format_exc()
        print(error, file=sys.stderr, flush=True)
    except SystemExit:  # what was measured until then is kept
        state, error = "timed out", f"ended after {time.monotonic() - begin:.0f} s"
    result = {
        "step": given.step,
        "status": state,
        "seconds": time.monotonic() - begin,
        "device": facts.device(given.device),
        "versions": facts.versions(),
        "command": shlex.join(["tests.gpu.one_step", *arguments]),
        "commit": facts.checkout()["commit"],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "tiny": given.tiny,
        "figures": figures,
        "error": error,
    }
    record.write(given.out, result)
    return 0 if state == "ok" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
