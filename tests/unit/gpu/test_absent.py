"""What stands in for FlashInfer: any name is found, and whoever calls one is told."""

import subprocess
import sys
from pathlib import Path

ABSENT = Path(__file__).resolve().parents[3] / "tests" / "gpu" / "absent"

SCRIPT = """
from flashinfer import bmm_fp8
from flashinfer.fused_moe.core import ActivationType
from flashinfer.sampling import top_k_renorm_prob
print(ActivationType.Swiglu is not None)
try:
    top_k_renorm_prob(1)
except RuntimeError as error:
    print(error)
for asked in ("import flashinfer.norm", "from flashinfer import norm"):
    try:
        exec(asked)
    except ImportError:
        print("no norm")
"""


def test_names_are_found_calls_are_refused_and_norms_are_sgl_kernel_s() -> None:
    told = subprocess.check_output([sys.executable, "-c", SCRIPT], cwd=ABSENT, text=True)
    assert told.splitlines() == [
        "True",
        "FlashInfer is not here: flashinfer.sampling.top_k_renorm_prob",
        "no norm",
        "no norm",
    ]
