"""Can SGLang's engine for this device run the model? What its flags do not tell."""

from toolkit.launch.errors import Problem
from toolkit.launch.model import ModelFacts
from toolkit.launch.plan import Plan

LLAMA4 = ("llama4", "llama4_text")


def engine(plan: Plan) -> list[Problem]:
    """A model that would end its workers, or be served wrong."""
    config = plan.model.config
    if config.get("model_type") == "qwen3_moe" and (
        config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1
    ):
        # models/qwen3_moe.py:845: all layers have experts, those without keep random weights.
        what = "SGLang 0.5.21 gives every layer of a Qwen3MoeForCausalLM experts; this config has"
        what += " layers without, whose weights it would leave out without a word"
        repair = "use another model: mlp_only_layers must be empty, decoder_sparse_step 1"
        return [Problem("model", what, repair)]
    why = on_cpu(plan.model) if plan.device == "cpu" else ""
    if not why:
        return []
    what = f"SGLang's CPU engine cannot run {plan.model.model_class}: {why}"
    repair = "use device: cuda (with --dry-run a machine without a GPU will do), or another model"
    return [Problem("model", what, repair)]


def on_cpu(model: ModelFacts) -> str:
    """Why SGLang 0.5.21 does not run it on a CPU without AMX, or ""; files are those of
    `sglang/srt`."""
    if model.keeps_state:
        # layers/attention/linear/gdn_backend.py:181; PyPI has CUDA builds only.
        why = "its linear attention needs kernels (sgl_kernel.mamba) that are on no package index"
        return f"{why} for the CPU"
    if model.config.get("model_type") in LLAMA4:
        # models/llama4.py:333: what the rotary embedding returns is left unused, as CUDA's kernel
        # works in place; fused_moe_native.py:68 raises for its experts.
        return "it would leave out the rotary embedding, and has no way to weigh experts' input"
    return ""
