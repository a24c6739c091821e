"""`--prompts FILE`: every format that is read, and errors that name the line and its mend."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench import prompts
from toolkit.bench.build import build
from toolkit.bench.client import payload
from toolkit.bench.errors import BenchError
from toolkit.bench.source import Source
from toolkit.bench.target import SPARE, Target
from toolkit.bench.workload import Workload
from toolkit.embedded import model_path

TARGET = Target("http://127.0.0.1:9", "m", 256, model_path())


def saved(folder: Path, name: str, *rows: object) -> Path:
    path = folder / name
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows), "utf-8")
    return path


def texts(path: Path) -> list[str]:
    return [prompt.text for prompt in prompts.load(path)]


def test_lines_of_text_are_prompts_and_blank_ones_are_none(tmp_path: Path) -> None:
    path = saved(tmp_path, "mine.txt", "What is it?", "", '  {"not": json', "Что это?\u2028да")
    assert texts(path) == ["What is it?", '{"not": json', "Что это?\u2028да"]
    assert texts(saved(tmp_path, "mine", "one", "two")) == ["one", "two"]


SHARE = {
    "id": 7,
    "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}],
}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("row", "text", "roles", "tokens", "answer"),
    [
        ({"prompt": "Hi"}, "Hi", [], None, ""),
        ({"text": "Hi", "sampling_params": {"max_new_tokens": 9}}, "Hi", [], 9, ""),
        ({"messages": CHAT, "max_tokens": 7}, "Be brief.\n\nHi", ["system", "user"], 7, ""),
        ({"body": {"messages": CHAT, "max_completion_tokens": 5}, "custom_id": "a",
          "method": "POST", "url": "/v1/chat/completions"}, "Be brief.\n\nHi",
         ["system", "user"], 5, ""),
        ({"messages": [*CHAT, {"role": "assistant", "content": "Ho"}]}, "Be brief.\n\nHi",
         ["system", "user"], None, "Ho"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, "Hi",
         ["user"], None, ""),
        (SHARE, "Hi", ["user"], None, "Ho"),
        ({"conversation": [{"role": "user", "content": "Hi"}]}, "Hi", ["user"], None, ""),
        ({"conversations": [{"from": "system", "value": "S"}, *SHARE["conversations"]]}, "S\n\nHi",  # type: ignore[misc]
         ["system", "user"], None, "Ho"),
    ],
)  # fmt: skip
def test_rows_of_json_lines(
    tmp_path: Path,
    row: dict[str, Any],
    text: str,
    roles: list[str],
    tokens: int | None,
    answer: str,
) -> None:
    found = prompts.load(saved(tmp_path, "a.jsonl", row, "", {"prompt": "z"}))
    assert [prompt.text for prompt in found] == [text, "z"]
    first = found[0]
    assert [role for role, _ in first.messages] == roles
    assert (first.max_tokens, first.answer) == (tokens, answer)
    assert first.place.endswith("a.jsonl:1") and found[1].place.endswith("a.jsonl:3")


def test_a_sharegpt_file_is_one_array_and_may_be_packed(tmp_path: Path) -> None:
    whole = json.dumps([SHARE, SHARE], indent=1)
    (tmp_path / "share.json.gz").write_bytes(gzip.compress(whole.encode()))
    assert texts(tmp_path / "share.json.gz") == ["Hi", "Hi"]
    assert len(prompts.load(saved(tmp_path, "share", whole), limit=1)) == 1


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b" \n\n", "a.txt is empty: put one prompt a line"),
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.json", b"[]", "array is empty"),
        ("a.txt", b"one\ntw\xf6\n", r"a.txt:2: not UTF-8 \(byte 0xf6\): save it as UTF-8"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": ', r"a.jsonl:2: not JSON .*named .txt"),
        ("a.jsonl", b'{"prompt": "a"}\n\n{"question": "b"}', r"a.jsonl:3: no prompt .*question"),
        ("a.jsonl", b"7\n", r"a.jsonl:1: a number is no prompt"),
        ("a.jsonl", b'{"prompt": [1, 2]}', r'a.jsonl:1: "prompt" is a list: it must be a text'),
        ("a.jsonl", b'{"prompt": " "}', r'"prompt" is empty'),
        ("a.jsonl", b'{"text": "a", "max_tokens": 0}', r'"max_tokens" is 0'),
        ("a.jsonl", b'{"messages": []}', r'"messages" is empty'),
        ("a.jsonl", b'{"messages": ["a"]}', r"message 1 is a text: it needs"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}', r"message 1 has no text"),
        ("a.jsonl", b'{"messages": [{"role": "assistant", "content": "a"}]}', "nobody asks"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
         "pictures and sound are not sent"),
        ("a.json", b'[{"prompt": "a"}, {"b": 1}]', r"a.json, entry 2: no prompt .*has b\)"),
        ("a.json", b'[{"prompt": "a"},\n', r"a.json:2: not JSON"),
        ("a.jsonl.gz", b"\x1f\x8bzz", "cannot read the prompts"),
    ],
)  # fmt: skip
def test_what_is_no_prompt_is_refused_with_its_line(
    tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BenchError, match=says):
        prompts.load(tmp_path / name)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot read the prompts"):
        prompts.load(tmp_path / "none.txt")
    with pytest.raises(BenchError, match="cannot read the prompts"):
        prompts.load(tmp_path)


FACTS = {"domain": "law", "language": "de", "user": 17, "class": "batch"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "output_tokens": 9, **FACTS},
        {"messages": CHAT, "max_tokens": 9, **FACTS},
        {**SHARE, "output_tokens": 9, **FACTS},
        {"body": {"messages": CHAT, "user": "17", "max_tokens": 9}, "domain": "law",
         "language": "de", "class": "batch"},
    ],
)  # fmt: skip
def test_a_row_says_what_kind_of_request_it_is(tmp_path: Path, row: dict[str, Any]) -> None:
    (item,) = made(saved(tmp_path, "a.jsonl", row), chat=True)
    assert (item.domain, item.language, item.user, item.kind) == ("law", "de", "17", "batch")
    assert item.output_tokens == 9
    assert (item.label("class"), item.label("cell")) == ("batch", "law/de")


@pytest.mark.parametrize("value", [1.5, True, [], "", " ", "a\nb", {}])
@pytest.mark.parametrize("key", ["domain", "language", "user", "class"])
def test_what_is_no_name_is_refused(key: str, value: object) -> None:
    with pytest.raises(BenchError, match=rf'f:3: "{key}" is .*: it must be a name, or left out'):
        prompts.parse({"prompt": "Hi", key: value}, "f:3")
    assert prompts.parse({"prompt": "Hi", key: None}, "f:3").text == "Hi"


KEYS = (
    "prompt", "text", "messages", "conversations", "body", "role", "content", "from", "value",
    "max_tokens", "sampling_params", "domain", "user", "class", "output_tokens",
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
ROWS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(ROWS)
def test_any_json_is_a_prompt_or_an_error_of_ours(row: object) -> None:
    try:
        found = prompts.parse(row, "f:1")
    except BenchError as error:
        assert str(error).startswith("f:1")
    else:
        assert found.text.strip() and all(text.strip() for _, text in found.messages)


def made(path: Path, **more: object) -> Workload:
    return build(Source(prompts=path, **more), TARGET, open_loop=False)  # type: ignore[arg-type]


def test_lengths_are_the_options_then_the_rows_then_the_answers(tmp_path: Path) -> None:
    answer = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "one two three four " * 5}]
    path = saved(
        tmp_path, "a.jsonl", {"prompt": "a", "max_tokens": 5}, {"conversations": answer},
        {"prompt": "a"},
    )  # fmt: skip
    lengths = [item.output_tokens for item in made(path)]
    assert lengths[0] == 5 and 15 <= lengths[1] <= 60 and lengths[2] == 32
    assert [item.output_tokens for item in made(path, max_tokens=3)] == [3, 3, 3]


def test_each_prompt_is_sent_once_in_order_or_as_often_as_asked(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.txt", "a", "b", "c")
    assert [item.prompt for item in made(path)] == ["a", "b", "c"]
    assert [item.prompt for item in made(path, num_requests=5)] == ["a", "b", "c", "a", "b"]
    assert [item.prompt for item in made(path, num_requests=2)] == ["a", "b"]
    timed = build(Source(prompts=path, rate=5.0), TARGET, open_loop=True)
    assert [item.arrival_s > 0 for item in timed] == [False, True, True]


def test_a_chat_goes_to_the_chat_endpoint_as_it_was_said(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.jsonl", {"messages": CHAT})
    with pytest.raises(BenchError, match=r"a.jsonl:1: 2 messages are a chat: give --endpoint chat"):
        made(path)
    (item,) = made(path, chat=True)
    assert payload("chat", "m", item, True)["messages"] == CHAT
    (alone,) = made(saved(tmp_path, "b.jsonl", {"messages": CHAT[1:]}))
    assert payload("generate", "m", alone, True)["text"] == "Hi"


def test_a_chats_roles_are_in_the_digest(tmp_path: Path) -> None:
    swapped = [{"role": "developer", "content": "Be brief."}, CHAT[1]]
    both = [saved(tmp_path, f"{n}.jsonl", {"messages": m}) for n, m in enumerate([CHAT, swapped])]
    assert made(both[0], chat=True).digest != made(both[1], chat=True).digest


def test_what_does_not_fit_the_context_is_an_error_and_answers_are_clipped(tmp_path: Path) -> None:
    context = TARGET.context
    assert context is not None
    with pytest.raises(BenchError, match=r"a.txt:2: [\d,]+ tokens do not fit .* of 256"):
        made(saved(tmp_path, "a.txt", "a", "word " * 400))
    (item,) = made(saved(tmp_path, "b.txt", "a"), max_tokens=4000)
    assert context - SPARE - 4 <= item.output_tokens < context - SPARE


def test_prompts_and_what_has_domains_do_not_go_together(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.txt", "a")
    with pytest.raises(BenchError, match="--prompts or --trace, not both"):
        made(path, trace=Path("x.csv"))
    with pytest.raises(BenchError, match="--domains and --languages"):
        made(path, domains="code")
    with pytest.raises(BenchError, match="give --turns recorded or served"):
        made(path, think_s=1.0)
    with pytest.raises(BenchError, match="give --prompts FILE"):
        build(Source(turns="served"), TARGET, open_loop=False)
