"""The model and the prompts that ship with the project."""

from toolkit.embedded.prompts import (
    DOMAINS,
    LANGUAGES,
    OwnPrompt,
    draft_path,
    load_prompts,
    model_path,
)

__all__ = ["DOMAINS", "LANGUAGES", "OwnPrompt", "draft_path", "load_prompts", "model_path"]
