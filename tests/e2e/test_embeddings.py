"""/v1/embeddings of a small dense model of random weights behind the router (`mode: plain`)."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from patches.stubs import declare_torchvision_operators
from tests.e2e.deployments import deployed
from toolkit.embedded import model_path
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(600)]

TEXTS = ["The sea is", "def add(a, b):", "The parties agree that the lease ends."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Its folder, and it in transformers."""
    import torch

    declare_torchvision_operators()
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("embedding") / "model"
    tokens = len(AutoTokenizer.from_pretrained(model_path()))
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=tokens, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=1024,
    )  # fmt: skip
    made = Qwen3ForCausalLM(config).float().eval()
    made.save_pretrained(folder)
    for file in model_path().glob("*token*"):
        shutil.copy(file, folder)
    return folder, made


@pytest.fixture(scope="module")
def embedding(
    model: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    document = {
        "name": "embedding", "device": "cpu", "mode": "plain", "model": str(model[0]),
        "worker": {"kv_tokens": 4096, "max_running": 8, "args": {"is-embedding": True}},
        "router": {"kind": "toolkit"},
    }  # fmt: skip
    with deployed(document, tmp_path_factory.mktemp("deployment")) as up:
        yield up


def test_embeddings_are_the_model_s(embedding: Running, model: tuple[Path, Any]) -> None:
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model[0])
    with openai.OpenAI(
        base_url=embedding.router_url + "/v1", api_key="none", timeout=120, max_retries=0
    ) as client:
        answer = client.embeddings.create(model="any", input=TEXTS, encoding_format="float")
        assert [each.index for each in answer.data] == [0, 1, 2]
        for text, each in zip(TEXTS, answer.data, strict=True):
            with torch.no_grad():
                ids = torch.tensor([tokenizer(text).input_ids])
                hidden = model[1].model(ids).last_hidden_state[0, -1].numpy()
            wanted = hidden / np.linalg.norm(hidden)
            assert np.allclose(each.embedding, wanted, atol=1e-4)
        with pytest.raises(openai.APIStatusError, match="does not generate"):
            client.completions.create(model="any", prompt="hi", max_tokens=2)
