"""`toolkit recipes` says of every shipped file what it starts and turns on."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from toolkit.cli.main import app
from toolkit.launch.recipes import shipped
from toolkit.resources import recipes_dir


def test_each_is_there_in_words_those_for_the_cpu_first() -> None:
    found = {recipe.name: recipe for recipe in shipped()}
    assert set(found) == {path.stem for path in recipes_dir().glob("*.yaml")}
    devices = [recipe.device for recipe in found.values()]
    assert devices == sorted(devices)
    assert found["cpu-demo"].starts == "embedded: 1 prefill, 2 decode"
    assert found["cpu-dp"].starts == "embedded: 1 prefill, 1 decode (TP 2, DP 2 attention)"
    assert found["qwen3-next-80b-8gpu"].starts == (
        "qwen3-next-80b-a3b: 2 prefill (TP 2), 2 decode (TP 2)"
    )
    assert found["qwen3-235b-2x8"].starts == "qwen3-235b: 1 prefill (TP 4), 3 decode (TP 4)"
    assert {"stages", "moves"} <= set(found["cpu-stages"].systems)


def test_the_command_prints_them_for_people_and_for_programs() -> None:
    plain, told = (CliRunner().invoke(app, ["recipes", *more]) for more in ([], ["--json"]))
    assert plain.exit_code == told.exit_code == 0
    rows = {row["name"]: row for row in json.loads(told.stdout)}
    assert "preempted prompts" in rows["cpu-classes"]["systems"]
    for name in rows:
        assert name in plain.stdout
