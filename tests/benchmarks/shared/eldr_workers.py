"""The real CPU workers of launch/cpu-eldr.yaml without a router, and routers of one's own.

Workers tell every router that listens what they do, so several may be there at once, each with its
own profile. Only one of them should be given requests at a time: a router sees the load that the
others make, but not what they are about to send.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.eldr_rounds import RECIPE
from tests.benchmarks.shared.own_router import own_router
from toolkit.bench.errors import BenchError
from toolkit.launch.plan import RouterPlan


@dataclass(frozen=True)
class Workers:
    """Workers that are up; `plan` is the router that the recipe would put before them, `folder`
    is gone when they are."""

    plan: RouterPlan
    folder: Path

    @property
    def config(self) -> Mapping[str, Any]:
        """The recipe's router.json."""
        assert self.plan.config is not None, "it is toolkit's own router"
        return self.plan.config

    @property
    def decoders(self) -> int:
        """Decode workers, each with a centroid of its own."""
        return sum(worker["role"] == "decode" for worker in self.config["workers"])

    @contextmanager
    def router(self, profile: Path, **changes: Any) -> Iterator[str]:
        """A router with this profile and other `changes` to the recipe's; yields its URL when all
        workers are there and it serves the centroids of the profile, and ends it afterwards.

        BenchError: it does not come up, or with other centroids.
        """
        folder = Path(tempfile.mkdtemp(prefix="router-", dir=self.folder))
        own = {**changes, "profile": str(profile)}
        with own_router(self.plan, folder, own) as (url, state):
            check_centroids(state, profile)
            yield url


@contextmanager
def workers(profile: Path | None = None) -> Iterator[Workers]:
    """Start them, and end them on the way out. Prefill workers record the layers of `profile`,
    by default the recipe's.

    BenchError: a worker was restarted meanwhile. LaunchError: they do not come up.
    """
    from toolkit.launch.resolve import resolve
    from toolkit.launch.running import running
    from toolkit.settings.load import load_deployment

    deployment = load_deployment(RECIPE)
    if profile is not None:
        router = deployment.router.model_copy(update={"profile": str(profile)})
        deployment = deployment.model_copy(update={"router": router})
    plan = resolve(deployment)
    assert plan.router is not None
    # The launcher cannot know that routers which decide late will come: its check would refuse.
    # What late dispatch asks of a worker is in the commands already.
    bare = replace(plan, routers=(), dispatch="concurrent")
    with tempfile.TemporaryDirectory(prefix="eldr-") as folder:
        with running(bare, Path(folder)) as up:
            yield Workers(plan.router, Path(folder))
            restarted = [f"{w.name} ({w.restarts} x)" for w in up.workers if w.restarts]
        if restarted:
            raise BenchError(f"workers died and were restarted: {', '.join(restarted)}")


def check_centroids(state: Mapping[str, Any], profile: Path) -> None:
    """BenchError unless a router's `GET /workers` shows that it serves this profile's centroids as
    they are: row k on decode worker k, no refit, and the mean cosine that the profile's requests
    have to these very rows."""
    from toolkit.signatures.calibrated import calibrated
    from toolkit.signatures.nearness import nearness

    known, eldr = calibrated(str(profile)), state["eldr"]
    expected = nearness(known.requests.judged, known.centroids).cosine
    owners = {f"decode-{row}": row for row in range(len(known.centroids))}
    same = eldr["expected"] is not None and abs(eldr["expected"] - expected) < 1e-6
    if not same or eldr["owners"] != owners or eldr["refits"]:
        raise BenchError(
            f"the router does not serve the centroids of {profile} (expected cosine "
            f"{expected:.6f}): {eldr}"
        )
