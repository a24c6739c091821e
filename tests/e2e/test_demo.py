"""What `toolkit demo` does with a deployment, on the shared one and smaller."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.html_page import Page
from toolkit.demo.run import ARMS, Size, conclude, play
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e


def test_it_asks_compares_and_says_what_was_shown(
    deployment: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = Size(requests=4, concurrency=4, rounds=2)
    report = play(deployment.router_url, size)
    said = capsys.readouterr().out
    assert said.count("prefill-0 -> decode-") == 4, "four requests, and who served them"
    assert all(f"2/2 {arm}" in said for arm in ARMS)

    file = io.StringIO()
    page = tmp_path / "new" / "demo.html"
    conclude(Console(width=80, file=file), report, page, tmp_path)
    last = capsys.readouterr().out.splitlines()
    assert len(last) <= 10 and last[0].startswith("What was shown: eldr against")
    words = ("gain: ", "loss: ", "no difference seen: ")
    verdicts = [line for line in last if line.strip().startswith(words)]
    assert len(verdicts) == 5, "experts, time a token, first token, answer, tokens a second"
    assert str(page) in "".join(last)
    assert max(map(len, file.getvalue().splitlines())) <= 80
    shown = " ".join(Page(page.read_text()).words).replace("\u00a0", " ")
    assert all(line.strip() in shown for line in verdicts)
