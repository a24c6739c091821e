"""What crosses nodes by a profile, on requests that were not fitted; and the page that shows it."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.unit.html_page import Page
from tests.unit.profile import sample
from toolkit import placement
from toolkit.cli.profile import app
from toolkit.placement import Topology, linear, load_placement
from toolkit.placement.alltoall import ACROSS
from toolkit.profile.node_traffic import NodeTraffic, node_traffic, of_profile
from toolkit.profile.placing import EpConfig
from toolkit.profile.report import render
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.store import read
from toolkit.resources import profiles_dir

SIZE = sample.Size(requests=90, layers=3, experts=16, top_k=2, gpus=4, nodes=2)
BUILT = sample.build(SIZE)
LAYOUT = EpConfig(4, 4, 2)
SHIPPED = profiles_dir() / "embedded"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """SGLang is slow to import; what it would do is tested where it is the point."""

    def plain(
        traffic: placement.Traffic, topology: Topology, redundant: int
    ) -> placement.Placement:
        return linear(traffic.layers, traffic.experts, topology, redundant)

    if "slow" not in request.keywords:
        monkeypatch.setattr(placement, "eplb", plain)


@pytest.fixture
def traffic() -> NodeTraffic:
    return node_traffic(*BUILT, LAYOUT)


def test_it_is_fitted_to_some_requests_and_judged_by_the_others(traffic: NodeTraffic) -> None:
    _, arrays = BUILT
    held = arrays["held_out"].astype(bool)
    assert traffic.judged == held.sum() and len(traffic.fitted) == (~held).sum()
    fitted = arrays["decode_counts"][~held].sum(axis=0)
    np.testing.assert_array_equal(traffic.load.sum(axis=0), fitted)
    for side in (traffic.eplb, traffic.laid, traffic.eplb_local, traffic.laid_local):
        times = side.came.sum(axis=0)
        assert (times == times[0]).all(), "every held-out request counts as often as any other"
        judged = arrays["decode_counts"][held].sum(axis=0)
        np.testing.assert_allclose(side.load.sum(axis=0), times[0] * judged)
        np.testing.assert_allclose(side.served.sum(axis=1), times[0] * judged.sum(axis=1))


def test_unseen_traffic_changes_nothing_that_was_fitted(traffic: NodeTraffic) -> None:
    profile, arrays = BUILT
    held = arrays["held_out"].astype(bool)
    other = {**arrays, "decode_counts": arrays["decode_counts"].copy()}
    other["decode_counts"][held] = other["decode_counts"][held][:, :, ::-1]
    found = node_traffic(profile, other, LAYOUT)
    for name in ("eplb", "laid"):
        one, two = (getattr(each, name).placement.physical_to_logical for each in (traffic, found))
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(traffic.layout.home, found.layout.home)
    np.testing.assert_array_equal(traffic.after.came, found.after.came)


def test_its_matrix_is_what_crosses(traffic: NodeTraffic) -> None:
    for side in (traffic.before, traffic.after):
        assert side.matrix.shape == (2, 2) and side.matrix.sum() == pytest.approx(1)
        assert side.across == pytest.approx(side.matrix[0, 1] + side.matrix[1, 0])
        assert 0 < side.own < 1 - side.across
        assert (side.balance >= 1).all() and side.fullest >= 1
    assert traffic.before.came.sum(axis=1).std() < 1, "round robin"
    assert traffic.after.across < traffic.before.across


def test_copies_followed_token_by_token_are_the_same() -> None:
    """`between` against `sent`, which has the tokens."""
    topology = Topology(4, 2)
    where = node_traffic(*BUILT, LAYOUT).layout.placement
    rng = np.random.default_rng(0)
    ids, home = rng.integers(0, 16, (200, 3, 2)), rng.integers(0, 4, 200)
    load = np.zeros((4, 3, 16))
    for token, rank in zip(ids, home, strict=True):
        for layer, row in enumerate(token):
            np.add.at(load[rank, layer], row, 1)
    for dispatch in ("nearest", "random"):
        pairs = placement.between(where, topology, load, dispatch=dispatch)
        sent = placement.sent(where, topology, ids, home, dispatch=dispatch)
        np.testing.assert_allclose(pairs.sum(axis=1), sent.load, rtol=1e-5)
        across = pairs.reshape(3, 2, 2, 2, 2).sum(axis=(2, 4))
        np.testing.assert_allclose(
            across[:, 0, 1] + across[:, 1, 0], sent.copies[:, ACROSS], rtol=1e-5
        )


@pytest.mark.parametrize("spoilt", [np.zeros((3, 3, 16)), -np.ones((4, 3, 16))])
def test_pairs_between_what_does_not_fit(spoilt: np.ndarray) -> None:
    topology = Topology(4, 2)
    with pytest.raises(ValueError, match="load"):
        placement.between(linear(3, 16, topology), topology, spoilt)


def test_of_one_node_every_gpu_is_looked_at(traffic: NodeTraffic) -> None:
    found = node_traffic(*BUILT, EpConfig(4, 0, 4))
    assert (found.unit, found.topology.nodes) == ("GPU", 4)
    assert found.before.across == pytest.approx(1 - found.before.own)
    assert traffic.unit == "node"
    page = render(*BUILT, found)
    assert "Experts and requests on GPUs" in page and "cross GPUs before" in page


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (EpConfig(5, 0, 5), "do not divide"),
        (EpConfig(4, 0, 3), "nodes of 3"),
        (EpConfig(1, 0, 1), "one GPU"),
        (EpConfig(32, 16, 8), "has 18 held-out requests, and 32 GPUs need"),
        (EpConfig(4, 48, 2), "one replica of each on each of 2 nodes"),
        (EpConfig(4, -4, 2), "redundant"),
    ],
)
def test_what_cannot_be_laid(layout: EpConfig, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        node_traffic(*BUILT, layout)


def test_silent_clusters_and_layers_are_said() -> None:
    profile, arrays = sample.build(SIZE)
    held = arrays["held_out"].astype(bool)
    arrays["decode_counts"][held] = 0
    with pytest.raises(ProfileError, match="longer answers"):
        node_traffic(profile, arrays, LAYOUT)
    arrays["decode_counts"][:] = 0
    with pytest.raises(ProfileError, match="no expert ever fires"):
        node_traffic(profile, arrays, LAYOUT)


def test_without_sglang_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ImportError("No module named 'sglang'")

    monkeypatch.setattr(placement, "eplb", missing)
    with pytest.raises(ProfileError, match="where SGLang is installed"):
        node_traffic(*BUILT, LAYOUT)


def test_the_profiles_own_layout() -> None:
    found = of_profile(*BUILT)
    assert found is not None
    assert (found.topology, found.redundant) == (Topology(4, 2), 4)
    one = sample.build(sample.TINY)
    assert of_profile(*one) is None


def test_the_page(traffic: NodeTraffic) -> None:
    text = render(*BUILT, traffic)
    page = Page(text)
    figures = ("node-traffic", "node-slots", "node-load", "cluster-homes")
    assert [name for name in figures if page.ids[name] != 1] == []
    assert [name for name, n in page.ids.items() if n > 1] == []
    assert ("a", "href", "#s-nodes") in page.attributes
    assert "#s-nodes" not in render(*BUILT)
    words = " ".join(page.words)
    assert not re.search(r"\b(nan|inf|None)\b", words)
    assert "72 requests and shown for that of 18 others, which were held out" in words
    for side in (traffic.before, traffic.after):
        assert f"{100 * side.across:.1f}\u00a0%" in words
        for share in side.matrix.ravel():
            assert f"{100 * share:.1f}" in words
    takeaways = re.findall(r'<p class="takeaway">(.*?)</p>', text)
    assert all(said.endswith(".") and re.search(r"\d", said) for said in takeaways)
    assert render(*BUILT, traffic) == text


def test_the_page_of_hostile_labels(traffic: NodeTraffic) -> None:
    profile, arrays = BUILT
    spoilt = {"domain": '<b>"x",y', "language": ""}
    requests = tuple(r.model_copy(update=spoilt) for r in profile.requests)
    text = render(profile.model_copy(update={"requests": requests}), arrays, traffic)
    Page(text)
    assert "<b>" not in text and "unlabelled" in text


def told(*argv: str) -> str:
    done = CliRunner().invoke(app, list(argv))
    assert done.exit_code == 0, done.output
    return done.output


def test_commands(tmp_path: Path) -> None:
    size = ("--ep", "4", "--gpus-per-node", "2", "--redundant", "16")
    page, path = tmp_path / "page.html", tmp_path / "placement.json"
    said = told("report", str(SHIPPED), *size, "--out", str(page))
    assert "pairs cross nodes" in said and "59 requests that were not fitted" in said
    assert 'id="s-nodes"' in page.read_text()
    told("report", str(SHIPPED), "--out", str(page))
    assert 'id="s-nodes"' not in page.read_text()
    said = told("place", str(SHIPPED), *size, "--kind", "nodes", "--out", str(path))
    assert "--ep-dispatch-algorithm static" in said
    profile, _ = read(SHIPPED)
    assert load_placement(path, profile.model.experts, 4, profile.model.layers).redundant == 16


def test_commands_that_cannot(tmp_path: Path) -> None:
    def refused(*argv: str) -> str:
        done = CliRunner().invoke(app, [argv[0], str(SHIPPED), *argv[1:]])
        assert done.exit_code
        return str(done.exception) + done.output

    missing = str(tmp_path / "none" / "x")
    size = ("--ep", "4", "--gpus-per-node", "2")
    assert "give --ep" in refused("report", "--redundant", "4")
    assert "cannot write" in refused("report", "--out", missing)
    assert "cannot write" in refused("place", *size, "--kind", "nodes", "--out", missing)
    assert "held-out" in refused("report", "--ep", "96", "--redundant", "48", "--out", missing)


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("sglang"), reason="the baseline calls SGLang")
def test_the_embedded_model_crosses_less() -> None:
    found = node_traffic(*read(SHIPPED), EpConfig(8, 16, 2))
    assert found.after.across < 0.4 * found.before.across
    assert found.before.balance.mean() < 1.4 and found.after.balance.mean() < 1.6
