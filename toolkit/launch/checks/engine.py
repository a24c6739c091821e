"""Can SGLang's engine for this device run the model? What its flags do not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.launch.errors import Problem

if TYPE_CHECKING:
    from toolkit.launch.plan import Plan


def engine(plan: Plan) -> list[Problem]:
    """A model that would end its workers on the CPU while they start.

    SGLang 0.5.21 imports the kernels of linear attention from a CPU build of `sgl_kernel`
    (srt/layers/attention/linear/gdn_backend.py:181), and PyPI has CUDA builds only.
    """
    if plan.device != "cpu" or not plan.model.keeps_state:
        return []
    name = plan.model.model_class
    what = f"SGLang's CPU engine cannot run {name}: its linear attention needs kernels"
    what += " (sgl_kernel.mamba) that are on no package index for the CPU"
    mend = "use device: cuda (with --dry-run a machine without a GPU will do), or another model"
    return [Problem("model", what, mend)]
