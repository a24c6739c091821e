"""Write a tiny model of an architecture: random weights, the embedded model's tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.architectures.configs import Architecture
from toolkit.embedded import model_path

SEED = 22
SPREAD = 0.12
"""Standard deviation of a weight. With the usual 0.02 a model of this size says much the same
whatever the prompt, so that equal answers would prove nothing."""
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)


def write(architecture: Architecture, folder: Path, seed: int = SEED) -> Path:
    """Write config.json, the tokenizer and model.safetensors (float32) into `folder`, which is
    made; takes a second. The same seed gives the same weights."""
    write_config(architecture, folder)
    made = model(architecture, folder, seed)
    made.save_pretrained(folder)
    # transformers writes its own reading of the configuration over it.
    write_config(architecture, folder)
    return folder


def write_config(architecture: Architecture, folder: Path) -> Path:
    """Only what a dry run needs: config.json and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(architecture.config, indent=2) + "\n")
    for name in TOKENIZER:
        shutil.copyfile(model_path() / name, folder / name)
    return folder


def model(architecture: Architecture, folder: Path, seed: int) -> Any:
    """The model in transformers, by the config.json in `folder`, every weight drawn anew."""
    import torch

    kind = model_class(architecture)
    config = kind.config_class.from_pretrained(folder)
    made = kind(config).to(torch.float32).eval()
    # SGLang keeps sinks in bfloat16 (`srt/models/gpt_oss.py:429`), so these are such numbers.
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in [*made.named_parameters(), *_corrections(made)]:
            drawn = torch.randn(parameter.shape, generator=source) * SPREAD
            scale = name.endswith("norm.weight") and parameter.dim() == 1
            drawn = drawn.bfloat16().float() if name.endswith(".sinks") else drawn
            parameter.copy_(1.0 + drawn if scale else drawn)
    return made


def model_class(architecture: Architecture) -> Any:
    """transformers' class. Its module is imported here, with the operators that it wants."""
    from patches.stubs import declare_torchvision_operators

    declare_torchvision_operators()
    import transformers

    return getattr(transformers, architecture.model_class)


def _corrections(made: Any) -> list[tuple[str, Any]]:
    """Biases by which experts are chosen: buffers, which training sets without a gradient."""
    return [item for item in made.named_buffers() if item[0].endswith("e_score_correction_bias")]
