"""Files that the router appends to: whole lines, a bound, and nobody else's eyes."""

from pathlib import Path

import pytest

from toolkit.router.line_file import LineFile
from toolkit.settings.router.config import ConfigError


def test_it_ends_at_its_bound_with_a_whole_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    file = LineFile(str(path), "record", most=10)
    assert [file.write(line) for line in (b"12345\n", b"1234\n", b"1\n")] == [True, False, False]
    assert path.read_bytes() == b"12345\n", "nothing behind a line that is lost"
    assert caplog.text.count("nothing more is recorded") == 1
    assert path.stat().st_mode & 0o077 == 0


def test_what_is_there_already_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for number in range(3):
        file = LineFile(str(path), "record", most=5)
        file.write(b"%d\n" % number)
        file.close()
    assert path.read_bytes() == b"0\n1\n"


def test_a_full_disk_ends_it_and_a_folder_that_is_not_there_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not LineFile("/dev/full", "record").write(b"1\n")
    assert "No space left" in caplog.text
    with pytest.raises(ConfigError, match="record_decisions: cannot write"):
        LineFile(str(tmp_path / "nowhere" / "a"), "record_decisions")
