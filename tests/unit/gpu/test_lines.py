"""The table of GPU-only lines against the code."""

from pathlib import Path

import pytest

from tests.gpu import lines
from tests.gpu.lines import Line

HERE = Path(__file__)


def test_every_entry_is_in_the_code_and_every_such_line_is_in_an_entry() -> None:
    entries = lines.table()
    repair = (
        "mend tests/gpu/lines.toml: what a GPU runs is listed there with the steps that reach it"
    )
    assert lines.gone(entries) == [], repair
    assert lines.unlisted(entries, lines.hits()) == [], repair


def test_no_entry_is_there_twice() -> None:
    seen = [(entry.file, entry.text) for entry in lines.table()]
    assert len(seen) == len(set(seen))


def test_a_line_that_goes_and_one_that_comes_are_seen(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "patches" / "new.py").write_text(
        '"""Talks of torch.cuda only."""\n# torch.cuda here too\nimport torch\n'
        "stream = torch.cuda.Stream()\ntext = 'x'  # pin_memory\n"
    )
    (tmp_path / "toolkit" / "flag.py").write_text('if device == "cuda":\n    pass\n')
    found = lines.hits(tmp_path)
    assert [(hit.file, hit.number) for hit in found] == [
        ("patches/new.py", 4),
        ("toolkit/flag.py", 1),
    ]
    entries = [Line("patches/new.py", "torch.cuda.Stream()", "x", ("late",))]
    assert [hit.file for hit in lines.unlisted(entries, found)] == ["toolkit/flag.py"]
    (tmp_path / "patches" / "new.py").write_text("stream = None\n")
    assert lines.gone(entries, tmp_path) == entries


@pytest.mark.parametrize(
    "entry",
    [
        'file = "a"\ntext = "b"\ndoes = "c"\nstep = ["nothing"]',
        'file = "a"\ntext = "b"\nstep = ["late"]',
    ],
)
def test_an_entry_that_names_no_step_or_lacks_a_key_is_refused(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.toml"
    path.write_text(f"[[line]]\n{entry}\n")
    monkeypatch.setattr(lines, "TABLE", path)
    with pytest.raises(ValueError, match=r"lines\.toml"):
        lines.table()


def test_a_line_that_no_step_reaches_says_why() -> None:
    why = ("no check", "several GPUs", "nothing on a GPU", "CPU workers only")
    unreached = [entry for entry in lines.table() if not entry.step]
    assert [entry for entry in unreached if not any(each in entry.does for each in why)] == []
