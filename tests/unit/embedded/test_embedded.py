"""The embedded model's folder, tokenizer and prompts; nothing here loads torch."""

import json
import struct
from collections import Counter
from typing import Any

import pytest

from tests.training.corpus import ALLOWED, EXCLUDED, load_rows
from toolkit.embedded import DOMAINS, LANGUAGES, load_prompts, model_path
from toolkit.embedded.prompts import compose_long

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return json.loads((model_path() / "config.json").read_text())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(model_path() / "tokenizer.json"))


@pytest.fixture(scope="module")
def template() -> Any:
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    settings = json.loads((model_path() / "tokenizer_config.json").read_text())
    return environment.from_string(settings["chat_template"])


def test_folder_fits_its_budget() -> None:
    files = [path for path in model_path().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 32_000_000


def test_config_is_a_routed_qwen3_moe(config: dict[str, Any]) -> None:
    assert config["architectures"] == ["Qwen3MoeForCausalLM"]
    assert config["num_experts"] >= 32
    assert config["num_experts_per_tok"] == 4
    assert config["norm_topk_prob"] is True
    assert config["mlp_only_layers"] == [] and config["decoder_sparse_step"] == 1
    # Two tensor-parallel ranks must divide every sharded dimension.
    for key in ("num_attention_heads", "num_key_value_heads", "moe_intermediate_size"):
        assert config[key] % 2 == 0


def test_weights_are_complete_bf16_with_their_own_head(config: dict[str, Any]) -> None:
    with (model_path() / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    assert {entry["dtype"] for entry in header.values()} == {"BF16"}
    # SGLang 0.5.21 ignores tying in qwen3_moe: without this tensor every token would be id 0.
    assert config["tie_word_embeddings"] is False
    shape = [config["vocab_size"], config["hidden_size"]]
    assert header["lm_head.weight"]["shape"] == shape
    experts = [name for name in header if ".experts." in name]
    assert len(experts) == 3 * config["num_experts"] * config["num_hidden_layers"]


def test_special_tokens_agree_with_config(config: dict[str, Any], tokenizer: Any) -> None:
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id("<|im_end|>") == config["eos_token_id"]
    assert tokenizer.token_to_id("<|endoftext|>") == config["pad_token_id"]


@pytest.mark.parametrize(
    "text",
    [
        "def area(r: float) -> float:\n\treturn 3.14 * r ** 2  # ok",
        "请解释合同法中的违约责任，谢谢！",
        "Объясни, почему небо голубое… «кавычки» — тире",
        "L'œuvre coûte 1 234 €, n'est-ce pas ?",
        "🤖 emoji, 𝒳 maths, \u200d joiner, ℝ and é decomposed",
    ],
)
def test_tokenizer_round_trip(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_prompt_makes_the_round_trip(tokenizer: Any) -> None:
    for prompt in load_prompts():
        assert tokenizer.decode(tokenizer.encode(prompt.text).ids) == prompt.text


def test_chat_template_renders_roles_and_tools(template: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}],
        },
        {"role": "tool", "content": "3 degrees"},
    ]
    text = template.render(messages=messages, tools=TOOLS, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '"get_weather"' in text.split("</tools>")[0]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{call}<|im_end|>" in text
    assert "<tool_response>\n3 degrees\n</tool_response><|im_end|>\n" in text
    assert text.endswith("<|im_start|>assistant\n")


def test_chat_template_without_tools_or_generation_prompt(template: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert template.render(messages=messages) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
    )


def test_prompts_cover_every_cell_and_are_unique() -> None:
    prompts = load_prompts()
    cells = Counter((p.domain, p.language) for p in prompts)
    for domain in DOMAINS:
        for language in LANGUAGES:
            assert cells[domain, language] >= (4 if domain == "general" else 12)
    assert len({p.id for p in prompts}) == len({p.text for p in prompts}) == len(prompts)
    assert all(p.text == p.text.strip() != "" for p in prompts)


def test_prompts_have_short_and_long_ones() -> None:
    words = [len(p.text.split()) for p in load_prompts(language="en")]
    assert min(words) < 40 and sum(150 <= count <= 450 for count in words) >= 8


def test_long_prompts_are_what_the_script_composes() -> None:
    prompts = load_prompts()
    short = [p for p in prompts if "-long-" not in p.id]
    assert compose_long(short) == [p for p in prompts if "-long-" in p.id]


def test_prompts_filter_and_refuse_unknown_names() -> None:
    chosen = load_prompts("legal", "fr")
    assert chosen and all((p.domain, p.language) == ("legal", "fr") for p in chosen)
    with pytest.raises(ValueError, match="unknown domain"):
        load_prompts("cooking")
    with pytest.raises(ValueError, match="unknown language"):
        load_prompts(language="de")


def test_no_share_alike_source_is_allowed(tmp_path: Any) -> None:
    assert not any("SA" in licence for licence in ALLOWED.values())
    assert not ALLOWED.keys() & EXCLUDED.keys()
    rows = [
        {"domain": "code", "language": "en", "source": "MCEVAL/McEval", "text": "x"},
        {"domain": "math", "language": "en", "source": "openai/grade-school-math", "text": "y"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [row.text for row in load_rows(path)] == ["y"]
    path.write_text(json.dumps(rows[0] | {"source": "somewhere/new"}))
    with pytest.raises(ValueError, match="never checked"):
        load_rows(path)
