"""The numeric unit tests once more, as other CPUs would compute them: a step of the test command.

OpenBLAS (in numpy and in scipy), numpy, torch and glibc each choose their routines by the CPU, and
each can be told by the environment to take those of an older one. A `Kernels` tells all four the
same; the tests' own conftest then asks OpenBLAS which kernels it took and ends the run if they are
others. One that needs instructions which this CPU lacks is left out, by name.

`python -m toolkit.setup.kernels [--every] [pytest arguments]`: the runs side by side, one a core.
The kernels that OpenBLAS takes here by itself run with `--every` only: the other unit tests have
tried them, with more examples.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Set, Tuple

from toolkit.setup import say

ASKED = "TOOLKIT_TEST_KERNELS"
"""In the environment of such a run: what OpenBLAS is to call its kernels, names with "|" between.
The tests then try fewer examples of each property."""
NOTHING_TO_RUN = 5
"""pytest's exit status when it found no test: `-k` or a path chose none of these."""

MODULES = frozenset(
    f"tests/unit/{name}.py"
    for name in (
        "placement/test_eplb",
        "placement/test_gimbal",
        "placement/test_joint",
        "placement/test_judge",
        "placement/test_milp",
        "placement/test_swaps",
        "placement/test_synthetic",
        "policies/test_brh",
        "policies/test_composed",
        "policies/test_eldr",
        "policies/support/test_inflight_lengths",
        "policies/test_level",
        "policies/test_predictors",
        "policies/support/test_inflight_signatures",
        "signatures/test_assignment",
        "signatures/test_clusters",
        "signatures/test_distinct",
        "signatures/test_drift",
        "signatures/test_drift_nearness",
        "signatures/test_drift_refits",
        "signatures/test_drift_reservoir",
        "signatures/test_fit",
        "signatures/test_mask",
        "signatures/test_of_kept",
        "signatures/test_space",
        "simulate/test_parts",
        "simulate/test_session",
        "simulate/test_simulation",
        "test_exact",
    )
)
"""Unit tests that compute. The others of these folders are pure Python on whole numbers, or look at
text and files."""

_NEW = "X86_V4 AVX512_ICL AVX512_SPR"
"""numpy's names of what came with AVX-512, and all (below) that came after SSE4.2."""


@dataclass(frozen=True)
class Kernels:
    """`core`: for OPENBLAS_CORETYPE; `called`: what OpenBLAS then says; `needs`: flags of
    /proc/cpuinfo; `aten`, `numpy_off`, `glibc`: the same for torch, numpy and glibc's exp and log;
    `threads`: of OpenBLAS and torch."""

    core: str
    called: Tuple[str, ...]
    needs: Tuple[str, ...]
    aten: str
    numpy_off: str
    glibc: str
    threads: int

    @property
    def name(self) -> str:
        return f"{self.core}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def environment(self) -> Dict[str, str]:
        """What makes a process compute so."""
        return {
            "OPENBLAS_CORETYPE": self.core,
            "OPENBLAS_NUM_THREADS": str(self.threads),
            "OMP_NUM_THREADS": str(self.threads),
            "ATEN_CPU_CAPABILITY": self.aten,
            "NPY_DISABLE_CPU_FEATURES": self.numpy_off,
            "GLIBC_TUNABLES": self.glibc,
            ASKED: "|".join(self.called),
        }


KERNELS = (
    Kernels("Haswell", ("Haswell",), ("avx2", "fma"), "avx2", _NEW, "", 2),
    Kernels(
        "SkylakeX",
        ("SkylakeX",),
        ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"),
        "avx512",
        "",
        "",
        2,
    ),
    # Builds of OpenBLAS without the oldest CPUs call these Katmai.
    Kernels(
        "Prescott",
        ("Prescott", "Katmai"),
        ("pni",),
        "default",
        f"X86_V3 {_NEW}",
        "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4,-AVX",
        1,
    ),
)


def cpu_flags() -> Set[str]:
    """The instruction sets of this CPU, as Linux names them."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.readlines()
    except OSError:
        return set()
    line = next((text for text in lines if text.startswith("flags")), ":")
    return set(line.partition(":")[2].split())


def missing(kernels: Kernels, flags: Set[str]) -> List[str]:
    """Instructions that these kernels use and this CPU lacks."""
    return [flag for flag in kernels.needs if flag not in flags]


def available(flags: Set[str]) -> List[Kernels]:
    """Those that run here; a line for each that does not."""
    found = []
    for kernels in KERNELS:
        lacks = missing(kernels, flags)
        if lacks:
            say.line(f"kernels {kernels.name}: SKIPPED, this CPU has no {', '.join(lacks)}")
        else:
            found.append(kernels)
    return found


_OWN = "from tests.kernels import taken; print('|'.join(sorted(set(taken().values()))))"


def own() -> str:
    """What OpenBLAS calls the kernels that it takes on this CPU when nobody asks for others; ""
    where it does not say, or where numpy's and scipy's took different ones."""
    said = subprocess.run(
        [sys.executable, "-c", _OWN], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return said.stdout.strip()


def without(own: str, chosen: Sequence[Kernels]) -> List[Kernels]:
    """Those that are not this CPU's own; a line for one that is left out. All, if none is left."""
    others = [kernels for kernels in chosen if own not in kernels.called]
    if not others:
        return list(chosen)
    for kernels in chosen:
        if kernels not in others:
            say.line(f"kernels {kernels.name}: this CPU's own, tried by the other unit tests")
    return others


def run_one(kernels: Kernels, command: Sequence[str]) -> int:
    """One run to its end; its output where it failed, else pytest's last line."""
    start = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **kernels.environment()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    output = done.stdout.rstrip()
    closing = output.splitlines()[-1] if output else "no output"
    failed = done.returncode not in (0, NOTHING_TO_RUN)
    if failed:
        print(output, flush=True)
    word = "FAILED" if failed else "passed"
    took = time.monotonic() - start
    say.line(f"kernels {kernels.name}: {word} in {took:.1f} s ({closing.strip('= ')})")
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    """Every set that this CPU has (but its own); 1 where one failed or none could run."""
    every = "--every" in arguments
    words = [word for word in arguments if word != "--every"]
    chosen = available(cpu_flags())
    if not chosen:
        say.line("no kernels to run: this CPU is unknown (/proc/cpuinfo)")
        return 1
    if not every:
        chosen = without(own(), chosen)
    if not any(Path(word.split("::")[0]).exists() for word in words):
        words += sorted(MODULES)  # to look through the others for numeric tests takes longer
    command = [sys.executable, "-m", "pytest", "-q", "-m", "numeric", *words]
    command += ["-p", "no:cacheprovider", "--durations=0", "--durations-min=30"]
    with ThreadPoolExecutor(max(1, min(len(chosen), os.cpu_count() or 1))) as pool:
        return max(pool.map(lambda kernels: run_one(kernels, command), chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
