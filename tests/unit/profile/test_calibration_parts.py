"""Waves, prompts, shards on disk and latency fits."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.profile import latency
from toolkit.profile.calibration_prompts import CalibrationPrompt, check, own_prompts, read_prompts
from toolkit.profile.shards import Shard, Shards
from toolkit.profile.waves import waves
from toolkit.profile_folder.errors import ProfileError

labels = st.sampled_from(["code", "math", ""])
prompt_sets = st.lists(labels, min_size=1, max_size=120).map(
    lambda names: [CalibrationPrompt(str(i), f"text {i}", domain=d) for i, d in enumerate(names)]
)


@given(prompt_sets, st.integers(1, 40), st.integers(0, 5))
def test_every_prompt_is_in_one_wave(
    prompts: list[CalibrationPrompt], most: int, seed: int
) -> None:
    plan = waves(prompts, most, seed)
    assert sorted(i for wave in plan for i in wave) == list(range(len(prompts)))
    assert all(1 <= len(wave) <= most for wave in plan)
    assert plan == waves(prompts, most, seed)


def test_waves_mix_sizes_and_labels() -> None:
    prompts = own_prompts()
    plan = waves(prompts, 16, 0)
    assert {len(wave) for wave in plan} >= {1, 2, 4, 8, 16}
    cells = [{prompts[i].cell for i in wave} for wave in plan if len(wave) == 8]
    assert any(len(found) == 1 for found in cells)
    assert any(len(found) > 3 for found in cells)


def test_about_a_quarter_is_held_out_by_content() -> None:
    prompts = own_prompts()
    share = sum(p.held_out for p in prompts) / len(prompts)
    assert 0.15 < share < 0.35
    assert (
        CalibrationPrompt("a", "same").held_out
        == CalibrationPrompt("b", "same", domain="x").held_out
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[1]", 'needs "text"'),
        ('{"text": 3}', 'needs "text"'),
        ('{"text": "  "}', 'needs "text"'),
        ('{"input_ids": [1, -2]}', 'needs "text"'),
        ('{"input_ids": []}', 'needs "text"'),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(ProfileError, match=words) as error:
        read_prompts(path)
    assert "prompts.jsonl:3" in str(error.value)


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "a", "domain": "law"}, {"input_ids": [3, 4]}, {"text": "c", "id": "x"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_prompts(path)
    assert [(p.text, p.input_ids, p.domain) for p in found] == [
        ("a", (), "law"),
        ("", (3, 4), ""),
        ("c", (), ""),
    ]
    assert found[2].id == "x"
    assert len(read_prompts(path, 2)) == 2
    with pytest.raises(ProfileError, match="cannot read"):
        read_prompts(tmp_path / "none.jsonl")


def test_sets_without_statistics_are_refused() -> None:
    with pytest.raises(ProfileError, match="at least 8"):
        check([CalibrationPrompt("a", "a")])
    with pytest.raises(ProfileError, match="all calibration prompts are the same"):
        check([CalibrationPrompt(str(i), "a") for i in range(20)])


def shard(number: int) -> Shard:
    rng = np.random.default_rng(number)
    return Shard(
        indices=np.array([2 * number, 2 * number + 1]),
        prefill_counts=rng.integers(0, 9, (2, 3, 4)),
        decode_counts=rng.integers(0, 9, (2, 3, 4)),
        prompt_tokens=np.array([5, 6]),
        output_tokens=np.array([7, 8]),
        token_owner=np.array([2 * number] * 3),
        tokens=rng.integers(0, 4, (3, 3, 2)),
        steps=rng.random((4, 11)),
        columns=np.array(["decode", "end"]),
        transfers=rng.random((2, 4)),
        loads=rng.random((2, 5)),
    )


def fill(folder: Path, count: int, meta: dict[str, int] | None = None) -> Shards:
    shards = Shards(folder, meta or {"seed": 0})
    for number in range(shards.done, count):
        shards.expect_layers([0, 1, 2])
        shards.add_affinity("prefill", np.full((1, 3, 2), number % 4, np.int16), 4)
        shards.add(shard(number))
    return shards


def test_shards_go_on_and_join_alike(tmp_path: Path) -> None:
    whole = fill(tmp_path / "a", 5)
    fill(tmp_path / "b", 2)
    resumed = fill(tmp_path / "b", 5)
    assert resumed.done == 5
    assert (resumed.affinity["prefill"] == whole.affinity["prefill"]).all()
    assert resumed.affinity["prefill"].sum() == 5 * 2 * 4
    for name, value in vars(whole.join()).items():
        assert (value == vars(resumed.join())[name]).all(), name
    assert resumed.join().indices.tolist() == list(range(10))


def test_shards_of_another_run_are_refused(tmp_path: Path) -> None:
    fill(tmp_path / "a", 1)
    with pytest.raises(ProfileError, match="other seed"):
        Shards(tmp_path / "a", {"seed": 1})


def test_other_layers_in_mid_run_are_refused(tmp_path: Path) -> None:
    shards = fill(tmp_path / "a", 1)
    with pytest.raises(ProfileError, match="captured layers changed"):
        shards.expect_layers([0, 1])


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ProfileError, match="cannot write"):
        Shards(tmp_path / "file" / "x", {})


WRITER = """
import sys
from pathlib import Path
from tests.unit.profile.test_calibration_parts import fill
folder = Path(sys.argv[1])
for count in range(1, 10_000):
    fill(folder, count)
    print(count, flush=True)
"""


@pytest.mark.parametrize("after", [1, 4, 9])
def test_a_killed_run_loses_at_most_the_wave_it_was_in(tmp_path: Path, after: int) -> None:
    folder = tmp_path / "run"
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert process.stdout is not None
    for _ in range(after):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    shards = Shards(folder, {"seed": 0})
    assert shards.done >= after
    assert shards.affinity["prefill"].sum() == shards.done * 2 * 4
    assert shards.join().indices.tolist() == list(range(2 * shards.done))


def test_the_fit_finds_the_coefficients() -> None:
    rng = np.random.default_rng(1)
    features = np.column_stack([np.ones(400), rng.integers(1, 17, 400), rng.integers(4, 30, 400)])
    seconds = features @ [0.004, 0.0005, 0.0002] * rng.normal(1, 0.02, 400)
    seconds[::20] *= 3  # stragglers of a shared machine
    found = latency.fit(("1", "requests", "distinct experts"), features, seconds)
    assert found is not None
    assert found.coefficients == pytest.approx((0.004, 0.0005, 0.0002), rel=0.15)
    assert found.held_out_error < found.constant_error / 2
    assert found.units == ("s", "s / request", "s / distinct expert")


def test_too_few_rows_are_not_fitted() -> None:
    assert latency.fit(("1",), np.ones((5, 1)), np.ones(5)) is None
    assert latency.fit_steps(np.zeros((0, 8)), (), np.zeros((0, 5))).note
    assert latency.fit_transfer(np.zeros((0, 4)), "x") is None


def test_transfers_of_small_waves_are_fitted() -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(10, 4000, 200).astype(float)
    seconds = (0.002 + tokens * 1e5 / 5e9) * rng.normal(1, 0.02, 200)
    rows = np.column_stack([tokens, tokens * 1e5, seconds, np.ones(200)])
    crowded = rows.copy()
    crowded[:, 2] *= 8
    crowded[:, 3] = 16
    found = latency.fit_transfer(np.concatenate([crowded, rows]), "mooncake")
    assert found is not None
    assert found.bytes_per_token == pytest.approx(1e5)
    assert found.latency_ms == pytest.approx(2, rel=0.2)
    assert found.bandwidth_gb_s == pytest.approx(5, rel=0.1)
    assert found.samples == 200


def test_sums_of_all_waves_are_not_packed_again_with_each(tmp_path: Path) -> None:
    """That took seconds a wave for a large model; a wave's own arrays are packed, once."""
    shards = fill(tmp_path / "run", 2)

    def ways(path: Path) -> set[int]:
        with zipfile.ZipFile(path) as packed:
            return {each.compress_type for each in packed.infolist()}

    assert ways(shards._sum(1)) == {zipfile.ZIP_STORED}
    assert ways(shards._wave(0)) == ways(shards._wave(1)) == {zipfile.ZIP_DEFLATED}
