"""`toolkit profile stages`: what is printed, written and advised against."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.present import present
from tests.standin.cluster import Cluster
from tests.unit.profile import sample
from tests.unit.router.cluster_calls import post
from toolkit.cli.main import app
from toolkit.profile_folder.schema import Latency
from toolkit.profile_folder.store import read, write
from toolkit.resources import profiles_dir
from toolkit.settings.load import load_deployment

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("profile") / "sample"
    profile, arrays = sample.build(sample.Size(requests=60))
    write(place, profile, arrays, "")
    return place


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    file = tmp_path / "lengths.txt"
    rows = ["100 200"] * 90 + ["30000, 400  # a long one"] * 10
    file.write_text("# prompt output\n\n" + "\n".join(rows) + "\n")
    return file


def _run(*words: object) -> tuple[int, str]:
    found = RUNNER.invoke(app, ["profile", "stages", *map(str, words)])
    return found.exit_code, " ".join(found.output.split())


DEPLOYMENT = """# mine
name: four   # of them
decode:
  replicas: 4   # as many
  tp: 1
"""


def test_it_prints_stages_and_writes_them_into_a_copy(
    folder: Path, lengths: Path, tmp_path: Path
) -> None:
    file, copy = tmp_path / "mine.yaml", tmp_path / "staged.yaml"
    file.write_text(DEPLOYMENT)
    code, said = _run(
        folder, "--lengths", lengths, "--deployment", file, "--in-flight", 200, "--into", copy
    )
    assert code == 0, said
    assert "200 requests in flight" in said and "8.1% off" in said
    layout = load_deployment(copy).decode.layout
    assert layout is not None and layout.ranks == 4 and len(layout.stages) == 2
    assert layout.shown(0) in said
    lines = copy.read_text().splitlines()
    assert [line for line in lines if "stages" not in line] == DEPLOYMENT.splitlines()
    assert file.read_text() == DEPLOYMENT
    code, said = _run(
        folder, "--lengths", lengths, "--deployment", file, "--in-flight", 9, "--into", copy
    )
    assert code == 1 and "is there already" in said


@pytest.mark.parametrize(
    ("router", "written"),
    [
        ("", {}),
        ("router: {rebalance: {over: 0.5}}\n", {"over": 0.5}),
        ("router: {rebalance: {mixed: 1.0}}\n", {}),
        ("router:\n  rebalance:\n    over: 0.5  # a half\n    mixed: 1.0\n", {"over": 0.5}),
        ("router: {rebalance: true}\n", {}),
        ("router: {rebalance: false}\n", False),
        ("router: toolkit\n", None),
    ],
)
def test_what_mixed_lengths_cost_is_written_for_the_router(
    router: str, written: object, folder: Path, lengths: Path, tmp_path: Path
) -> None:
    file, copy = tmp_path / "mine.yaml", tmp_path / "staged.yaml"
    file.write_text(DEPLOYMENT + router)
    words = ("--lengths", lengths, "--deployment", file, "--in-flight", 200, "--into", copy)
    code, said = _run(folder, *words, "--mixed-ns", 20)
    assert code == 0, said
    found = yaml.safe_load(copy.read_text()).get("router")
    moves = found.get("rebalance") if isinstance(found, dict) else None
    if isinstance(written, dict):
        fit = present(present(read(folder)[0].latency).qoe)
        assert moves == written | {"qoe": list(fit.coefficients), "mixed": pytest.approx(2e-8)}
        assert "will not follow" not in said and ("# a half" in copy.read_text()) == ("#" in router)
    else:
        assert moves == written and "will not follow" in said


def test_a_copy_with_relative_paths_stays_in_its_folder(
    folder: Path, lengths: Path, tmp_path: Path
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "other").mkdir()
    file = tmp_path / "mine.yaml"
    file.write_text(DEPLOYMENT + "model: weights\n")
    words = (folder, "--lengths", lengths, "--deployment", file, "--in-flight", 200)
    code, said = _run(*words, "--into", tmp_path / "other" / "staged.yaml")
    assert code == 1 and "in its own folder" in said
    code, said = _run(*words, "--into", tmp_path / "staged.yaml")
    assert code == 0, said


def test_where_stages_do_not_pay_it_says_so_and_writes_nothing(
    folder: Path, tmp_path: Path
) -> None:
    even, copy, file = tmp_path / "even.txt", tmp_path / "staged.yaml", tmp_path / "mine.yaml"
    even.write_text("500 20\n" * 50)
    file.write_text(DEPLOYMENT)
    words = ("--lengths", even, "--deployment", file, "--in-flight", 20, "--into", copy)
    code, said = _run(folder, *words)
    assert code == 3 and "leave stages out" in said
    assert not copy.exists()
    code, said = _run(folder, *words, "--anyway")
    assert code == 3 and copy.exists()


def test_a_trace_with_times_says_how_many_are_in_flight(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 100 * i, "input_length": 30_000 if i % 9 == 0 else 90, "output_length": 150}
        for i in range(200)
    ]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    code, said = _run(folder, "--trace", trace, "--instances", 6)
    assert code in (0, 3) and "requests in flight" in said
    code, said = _run(folder, "--trace", trace, "--instances", 6, "--rate", 1e6)
    assert code == 1 and "cannot keep up" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--instances", 2), "--trace FILE, --lengths FILE or --live URL, one"),
        (("--lengths", "L"), "--deployment FILE or --instances N"),
        (("--lengths", "L", "--instances", 2), "--in-flight N, or --rate R"),
        (("--lengths", "L", "--instances", 2, "--deployment", "cpu-demo"), "no --instances"),
        (("--lengths", "L", "--instances", 2, "--into", "x.yaml"), "--deployment FILE"),
        (("--lengths", "L", "--instances", 2, "--in-flight", 9, "--published"), "no QoE fit"),
        (("--lengths", "/none", "--instances", 2), "cannot read"),
    ],
)
def test_what_is_missing_is_asked_for(
    folder: Path, lengths: Path, words: tuple[object, ...], said: str
) -> None:
    code, found = _run(folder, *(lengths if word == "L" else word for word in words))
    assert code == 1 and said in found


async def test_live_lengths_are_asked_of_all_routers(folder: Path) -> None:
    config: dict[str, Any] = {"worker_args": ["--token-ms", "40"], "decodes": 2}
    async with Cluster(**config) as router, Cluster(beside=router) as other:
        body = {"prompt": "hello", "max_tokens": 300, "stream": True}
        tasks = [
            asyncio.ensure_future(post(each, "/v1/completions", body))
            for each in (router, other)
            for _ in range(12)
        ]
        words = ("--live", router.url, "--live", other.url, "--instances", 4)
        few, said = await asyncio.to_thread(_run, folder, *words)
        for each in (router, other):
            await each.until(
                lambda state: (
                    sum(row["inflight"] for row in state["workers"] if row["role"] == "decode")
                    == 12
                )
            )
        code, shown = await asyncio.to_thread(_run, folder, *words)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if few == 1:
        assert "requests decode now" in said
    assert code in (0, 3) and "24 requests in flight" in shown
    code, said = _run(folder, "--live", "http://127.0.0.1:1", "--instances", 4)
    assert code == 1 and "answers nothing" in said


def test_a_bad_line_is_named(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.txt"
    file.write_text("1 2\n3 x\n")
    code, said = _run(folder, "--lengths", file, "--instances", 2, "--in-flight", 2)
    assert code == 1 and "bad.txt:2: '3 x' is not PROMPT OUTPUT" in said.replace(" .", ".")


def test_the_shipped_profile_with_a_negative_term_says_what_to_do(lengths: Path) -> None:
    words = ("--lengths", lengths, "--instances", 2, "--in-flight", 2)
    code, said = _run(profiles_dir() / "embedded", *words)
    assert code == 1 and "below zero" in said and "measure it again" in said


def test_negative_terms_are_refused(tmp_path: Path, lengths: Path) -> None:
    profile, arrays = sample.build(sample.Size(requests=60))
    assert profile.latency is not None and profile.latency.qoe is not None
    bad = profile.latency.qoe.model_copy(update={"coefficients": (1.0, -1.0, 0.0, 0.0, 0.0)})
    latency = Latency(qoe=profile.latency.qoe, qoe_published=bad)
    write(tmp_path / "p", profile.model_copy(update={"latency": latency}), arrays, "")
    words = ("--lengths", lengths, "--instances", 2, "--in-flight", 2, "--published")
    code, said = _run(tmp_path / "p", *words)
    assert code == 1 and "D_1 is -1, below zero" in said
