"""Every supported release of SGLang has what the patches hook, call and read."""

import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from patches.base import PatchError
from tests.gpu.packing.wanted import SGLANG
from tests.releases import fetch, names, returns
from tests.releases.fetch import FITTED
from tests.releases.source import Source
from tests.sglang_python import run_python
from toolkit.setup.releases import PROVEN

OLD = {
    *("worker_key", "cpu_host_memory", "event_stream", "signature", "prefill_only", "load_count"),
    *("preempt_answers", "request_guard"),
}
"""Patches that have a variant for 0.5.17 alone."""

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600), pytest.mark.touched("releases")]


@pytest.mark.touched("releases")
@pytest.mark.parametrize("release", [each for each in FITTED if each != version("sglang")])
def test_every_symbol_is_where_a_patch_expects_it(release: str) -> None:
    verdicts = fetch.contract(release)
    assert len(verdicts) > 300
    assert [each for each in verdicts if each.problem] == []
    variants = {each.patch: each.variant for each in verdicts if each.variant}
    waiting = {SGLANG: "off in 0.5.17", "0.5.20": "to 0.5.21", "0.5.21": "to 0.5.21"}
    assert variants["waiting_queue"] == waiting.get(release, "from 0.5.22")
    single = release in (SGLANG, "0.5.20")
    assert variants["kv_reserve"] == ("to 0.5.20" if single else "from 0.5.21")
    old = {name for name, variant in variants.items() if variant.startswith("0.5.17")}
    assert old == (OLD if release == SGLANG else set())


@pytest.mark.parametrize("release", FITTED)
def test_names_that_it_lacks_are_looked_for_before_they_are_used(release: str) -> None:
    base = fetch.source(PROVEN[-1])
    for one, other in ((base, fetch.source(release)), (fetch.source(release), base)):
        assert set(names.vanished(one, other)) - set(names.KNOWN) == set()


@pytest.mark.parametrize("release", FITTED)
def test_hooked_functions_return_what_they_returned(release: str) -> None:
    assert returns.hooked(fetch.source(release)) == returns.recorded(release)


MUTATIONS = {
    "kv_transfer": ("srt/disaggregation/prefill.py", r"def send_kv_chunk\(", "def send_kv_piece("),
    "move_outgoing": (
        "srt/managers/scheduler.py",
        r"def process_batch_result\(\s*self,\s*batch: ScheduleBatch,",
        "def process_batch_result(self, other, batch: ScheduleBatch,",
    ),
}
"""By patch: one function has another name, one takes something before its batch."""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of our own, to be broken."""
    root = tmp_path_factory.mktemp("release")
    shutil.copytree(fetch.place(PROVEN[-1]) / "sglang", root / "sglang")
    return root


@pytest.mark.full
def test_a_mutated_wheel_is_noticed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {}
    for file, old, new in MUTATIONS.values():
        path = copied / "sglang" / file
        whole[path] = path.read_text()
        broken, count = re.subn(old, new, whole[path])
        assert count, "nothing to mutate"
        path.write_text(broken)
    monkeypatch.setattr(fetch, "place", lambda release: copied)
    try:
        problems = {each.patch for each in fetch.contract("mutated") if each.problem}
    finally:
        for path, text in whole.items():
            path.write_text(text)
    assert problems >= set(MUTATIONS)


def test_a_changed_return_is_noticed(copied: Path) -> None:
    path = copied / "sglang/srt/managers/scheduler.py"
    whole = path.read_text()
    before = returns.hooked(Source(copied))
    symbol = "sglang.srt.managers.scheduler.Scheduler.get_init_info"
    text = Source(copied).text(symbol)
    assert text is not None and before[symbol] == returns.recorded(PROVEN[-1])[symbol]
    path.write_text(whole.replace(text, re.sub(r"return (\w+)", r"return \1, None", text)))
    try:
        after = returns.hooked(Source(copied))
    finally:
        path.write_text(whole)
    assert {name for name in after if after[name] != before[name]} == {symbol}


REFUSED = """
from patches.stubs import put_on_path
put_on_path()
import sglang.srt.disaggregation.prefill as p
del p.SchedulerDisaggregationPrefillMixin.has_bootstrapped_waiting_req
import patches
patches.register()
"""


def test_a_refusal_names_the_release() -> None:
    said = run_python(REFUSED).stderr.strip().splitlines()[-1]
    assert said.startswith(f"toolkit: refused: SGLang {version('sglang')} does not fit: patch ")
    assert PatchError.__name__ not in said
