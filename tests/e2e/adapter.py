"""A LoRA adapter of random weights for the embedded model's attention, and the model with it."""

import json
from pathlib import Path

from tests.e2e.reference import Reference
from toolkit.embedded import model_path

RANK, ALPHA = 8, 16
NOISE = 0.1
"""Standard deviation of both matrices: enough that other tokens are the most likely."""


def write(folder: Path, seed: int) -> dict[str, tuple[int, int]]:
    """Write it as peft does. Returns each matrix's size [out, in] by its module's name."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model_path() / "config.json").read_text())
    hidden, each = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * each, config["num_key_value_heads"] * each
    sizes = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden),
             "o_proj": (hidden, queries)}  # fmt: skip
    source = torch.Generator().manual_seed(seed)
    names, weights = {}, {}
    for layer in range(config["num_hidden_layers"]):
        for part, (rows, columns) in sizes.items():
            name = f"model.layers.{layer}.self_attn.{part}"
            names[name] = (rows, columns)
            for matrix, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                drawn = torch.randn(shape, generator=source) * NOISE
                weights[f"base_model.model.{name}.lora_{matrix}.weight"] = drawn
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA,
        "lora_dropout": 0.0, "bias": "none", "target_modules": sorted(sizes),
        "base_model_name_or_path": str(model_path()),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return names


def merged(folder: Path, names: dict[str, tuple[int, int]]) -> Reference:
    """The model in transformers with the adapter added to its weights."""
    from safetensors.torch import load_file

    reference, weights = Reference(), load_file(folder / "adapter_model.safetensors")
    for name in names:
        a, b = (weights[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
        reference.add(name, (b @ a) * (ALPHA / RANK))
    return reference
