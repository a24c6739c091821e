"""`toolkit profile` as a command, on real workers: killed, resumed, written, read back, used."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from tests.e2e import calls
from tests.e2e.outputs import outputs, post
from tests.e2e.worker_process import TWO_RANKS, worker
from toolkit.launch.command import source_root
from toolkit.launch.running import Running
from toolkit.placement import Topology, judge, load_placement
from toolkit.profile_folder.store import read
from toolkit.resources import profiles_dir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.touched("profile-command")]

OPTIONS = ("--limit", "120", "--output-tokens", "24", "--concurrency", "8", "--k", "2")
PLACED = ("--ep", "2", "--redundant", "2")
PLACED_ALIKE = (("gimbal", 0), ("milp", 0), ("joint", 2))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "toolkit", "profile", *arguments]


def toolkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=source_root(), capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def made(deployment: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile whose calibration was killed with SIGKILL on the way, and started again."""
    folder = tmp_path_factory.mktemp("profiles") / "small"
    work = folder.with_name("small.measuring")
    arguments = ("--url", deployment.router_url, "--out", str(folder), *OPTIONS, *PLACED)
    first = subprocess.Popen(command(*arguments), cwd=source_root(), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while len(list(work.glob("wave-*.npz"))) < 3:
            assert first.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert not folder.exists(), "a killed run leaves no profile"
    kept = {p.name: p.stat().st_mtime_ns for p in work.glob("wave-*.npz")}
    other = toolkit(*arguments[:-1], "4", "--output-tokens", "32")
    assert other.returncode == 1
    assert "unfinished calibration with other settings" in other.stderr
    again = toolkit(*arguments)
    assert again.returncode == 0, again.stderr
    assert not work.exists()
    assert len(kept) >= 3
    return folder


def test_the_profile_is_whole_and_tells_what_was_asked(made: Path) -> None:
    profile, arrays = read(made)
    assert profile.data.requests == 120
    assert 15 < profile.data.held_out < 50
    assert profile.model.layers == (0, 1, 2, 3, 4, 5)
    assert (profile.model.experts, profile.model.top_k) == (48, 4)
    assert profile.setting.device == "cpu"
    assert profile.setting.workers == "1P + 2D"
    # Every token of every request is counted at every layer, k times.
    assert (arrays["prefill_counts"].sum((1, 2)) == arrays["prompt_tokens"] * 6 * 4).all()
    assert (arrays["decode_counts"].sum((1, 2)) == arrays["output_tokens"] * 6 * 4).all()
    assert (arrays["output_tokens"] == 23).all(), "the first token is the prefill's"
    fitted = arrays["held_out"] == 0
    for phase in ("prefill", "decode"):
        rows = arrays[f"{phase}_counts"][fitted].sum(axis=0)[:-1]
        assert (arrays[f"affinity_{phase}"].sum(axis=2) == 4 * rows).all(), phase
    assert profile.centroids.k == 2
    assert max(profile.centroids.sizes) <= -(-int(fitted.sum()) // 2)
    assert profile.rho.idf_masked is not None and profile.rho.idf_masked > 0.3
    assert profile.correlation.per_request_median > 0.3
    assert profile.transfer is not None and profile.transfer.bytes_per_token == 6144
    assert profile.latency.distinct is not None
    steps = arrays["steps"]
    distinct = steps[steps[:, 0] == 1][:, len(profile.steps_columns) :]
    requests = steps[steps[:, 0] == 1][:, profile.steps_columns.index("requests")]
    assert (distinct >= 4).all() and (distinct <= 4 * requests[:, None]).all()
    page = (made / "report.html").read_text()
    assert page.count("<svg") >= 7


def test_show_diff_and_check(made: Path, tmp_path: Path) -> None:
    shown = toolkit("show", str(made))
    assert shown.returncode == 0, shown.stderr
    assert "Distinct" in shown.stdout or "distinct" in shown.stdout
    assert toolkit("check", str(made), "--deployment", "cpu-demo").returncode == 0
    refitted = toolkit("fit", str(made), "--k", "4", "--out", str(tmp_path / "four"))
    assert refitted.returncode == 0, refitted.stderr
    profile, arrays = read(tmp_path / "four")
    assert profile.centroids.k == len(arrays["centroids"]) == 4
    wrong = toolkit("check", str(tmp_path / "four"), "--deployment", "cpu-demo")
    assert wrong.returncode == 1
    assert "4" in wrong.stderr and "2" in wrong.stderr and "--k" in wrong.stderr
    compared = toolkit("diff", str(made), str(tmp_path / "four"))
    assert compared.returncode == 0, compared.stderr
    placement = tmp_path / "placement.json"
    placed = toolkit("place", str(made), "--ep", "2", "--redundant", "2", "--out", str(placement))
    assert placed.returncode == 0, placed.stderr
    assert load_placement(placement, 48, 2).redundant == 2
    data = json.loads((made / "profile.json").read_text())
    text = json.dumps(data).replace('"experts": 48', '"experts": 47')
    (tmp_path / "four" / "profile.json").write_text(text)
    broken = toolkit("check", str(tmp_path / "four"))
    assert broken.returncode == 1 and "Traceback" not in broken.stderr


def test_no_such_router_is_a_clear_error(tmp_path: Path) -> None:
    failed = toolkit("--url", "http://127.0.0.1:9", "--out", str(tmp_path / "x"))
    assert failed.returncode == 1
    assert "nothing answers at http://127.0.0.1:9" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def unplaced(plain_server: str) -> list[list[int]]:
    return outputs(plain_server)


# What a kind decides is judged without workers (tests/unit/placement). Here is seen that SGLang
# takes such a file, once with replicas and once without.
@pytest.mark.parametrize(
    ("kind", "redundant"),
    [
        ("eplb", 2),
        ("joint", 0),
        *(pytest.param(*each, marks=pytest.mark.full) for each in PLACED_ALIKE),
    ],
)
def test_a_placement_on_real_ranks(
    unplaced: list[list[int]], tmp_path: Path, kind: str, redundant: int
) -> None:
    """Two EP ranks: the unplaced model's tokens, and hops that cross ranks as predicted."""
    made = profiles_dir() / "embedded"
    path = tmp_path / "placement.json"
    extra = ("--time-limit", "20") if kind == "milp" else ()
    placed = toolkit(
        "place", str(made), "--ep", "2", "--kind", kind, "--redundant", str(redundant),
        "--out", str(path), *extra,
    )  # fmt: skip
    assert placed.returncode == 0, placed.stderr
    flags = ["--tp-size", "2", "--ep-size", "2", "--init-expert-location", str(path)]
    flags += ["--ep-num-redundant-experts", str(redundant)] if redundant else []
    flags += ["--expert-distribution-recorder-mode", "per_token", "--sleep-on-idle"]
    recorder = {"SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(tmp_path)}
    with worker(*flags, log=tmp_path / "ep.log", **recorder, **TWO_RANKS) as url:
        post(url, "/start_expert_distribution_record")
        assert outputs(url) == unplaced
        post(url, "/stop_expert_distribution_record")
        post(url, "/dump_expert_distribution_record")
    slots = recorded(tmp_path)
    measured = crossing(slots // ((48 + redundant) // 2))
    predicted = prediction(path, slots)
    assert 0.2 < measured < 0.7
    # Without replicas there is nothing to guess; which replica a token takes is an expectation.
    assert measured == pytest.approx(predicted, abs=0.02 if redundant else 1e-6)


def recorded(folder: Path) -> np.ndarray:
    """Physical slots [tokens, layers, top_k] that the ranks of a worker recorded."""
    import torch

    dump = torch.load(sorted(folder.glob("*_0.pt"))[0], weights_only=True)
    rows = [record["topk_ids_of_layer"].permute(1, 0, 2) for record in dump["records"]]
    slots = torch.cat(rows).numpy()
    width = int((slots[0, 0] >= 0).sum())
    return slots[(slots[:, :, :width] >= 0).all(axis=(1, 2)), :, :width]


def crossing(ranks: np.ndarray) -> float:
    """Share of the pairs of consecutive layers' experts that lie on different ranks."""
    here, there = ranks[:, :-1, :, None], ranks[:, 1:, None, :]
    return float((here != there).mean())


def prediction(path: Path, slots: np.ndarray) -> float:
    """What `judge` says of the placement, from the logical ids of the same tokens."""
    placement = load_placement(path, 48, 2)
    table = placement.physical_to_logical
    logical = table[np.arange(len(table))[None, :, None], slots]
    verdict = judge(placement, Topology(2), logical, dispatch="row")
    return float(verdict.cross_gpu.mean())


def test_live_traffic_is_sampled_without_text(deployment: Running, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    sampler = subprocess.Popen(
        command(
            "--url", deployment.router_url, "--live", "0.5", "--share", "1.0",
            "--out", str(folder), "--k", "2",
        ),
        cwd=source_root(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip

    async def traffic() -> None:
        from toolkit.embedded import load_prompts

        texts = cycle(prompt.text for prompt in load_prompts()[:200])

        async def client(http: aiohttp.ClientSession) -> None:
            while sampler.poll() is None:
                sampling = {"max_new_tokens": 4, "temperature": 0}
                body = {"text": next(texts), "sampling_params": sampling}
                async with http.post(deployment.router_url + "/generate", json=body) as answer:
                    assert answer.status == 200

        async with calls.session() as http:
            await asyncio.gather(*(client(http) for _ in range(8)))

    try:
        calls.run(traffic())
        _, errors = sampler.communicate(timeout=120)
    finally:
        sampler.kill()
    assert sampler.returncode == 0, errors[-2000:]
    profile, _ = read(folder)
    assert profile.data.origin == "live traffic"
    assert profile.data.requests >= 20
    text = (folder / "profile.json").read_text() + (folder / "report.html").read_text()
    assert "goroutine" not in text
