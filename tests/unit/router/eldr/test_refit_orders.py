"""An order to refit is given at any router, and the one that fits carries it out."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.eldr.cluster import Traffic, admin, eldr_cluster, write_profile
from tests.unit.router.eldr.test_refits import KNOWN, Site
from tests.unit.router.eldr.test_shared_centroids import Ends, fits, named, version
from tests.unit.router.test_notices import signal_all
from toolkit.contract.notices import Notice
from toolkit.contract.variables import ROUTER_NAME_VARIABLE
from toolkit.router.eldr import refit_orders
from toolkit.router.eldr.drift_refits import FittedElsewhere
from toolkit.router.eldr.refit_orders import RefitAnswer, RefitOrders
from toolkit.router.eldr.shared_centroids import SharedCentroids
from toolkit.router.errors import ApiError
from toolkit.router.keys import Caller, Keyring, proof_of
from toolkit.router.own_name import own_name

OPEN = Keyring([], None)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("eldr") / "profile")


async def test_a_refit_that_is_declined_is_told_where_it_was_asked_for(profile: Any) -> None:
    async with (
        named(profile, "router-1") as one,
        named(profile, "router-2", beside=one) as other,
    ):
        await fits(other, False)
        await Traffic(one).many(KNOWN * 20)
        status, told = await admin(other, "refit")
        assert (status, told.get("result", told), told.get("router")) == (
            200,
            "declined",
            "router-1",
        )
        assert "cosine" in told["summary"] and told["version"] == await version(one)


async def test_a_router_that_hangs_is_named_and_another_one_fits(profile: Any) -> None:
    config = {"silent_s": 30, "hung_s": 60}
    async with (
        named(profile, "router-1", config=config) as one,
        named(profile, "router-2", config=config, beside=one) as other,
    ):
        await fits(other, False)
        signal_all(one, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            async with other.session.post(f"{other.admin}/admin/refit") as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
                why = (await answer.json())["error"]["message"]
            assert "router router-1 fits for all, and does not answer" in why
            assert time.monotonic() - begin < 6
            await fits(other, True)
            assert (await admin(other, "refit"))[0] == 409, "there was no traffic"
        finally:
            signal_all(one, signal.SIGCONT)


async def test_a_router_that_goes_before_it_has_an_answer_is_named(profile: Any) -> None:
    async with (
        named(profile, "router-1") as one,
        named(profile, "router-2", beside=one) as other,
    ):
        await fits(other, False)
        await Traffic(one).many(KNOWN * 20)
        order = asyncio.create_task(admin(other, "refit"))
        await asyncio.sleep(0.1)  # a refit takes longer
        signal_all(one, signal.SIGKILL)
        status, told = await order
        assert status == 503 and "router-1 fits for all, and has gone" in told["error"]["message"]


async def test_only_who_has_the_fitting_router_s_admin_key_has_it_refit(profile: Any) -> None:
    def keyed(name: str, key: str, **options: Any) -> Cluster:
        env = {ROUTER_NAME_VARIABLE: name, "TK_ADMIN": key}
        return eldr_cluster(profile, env=env, config={"admin_key_env": "TK_ADMIN"}, **options)

    async with (
        keyed("router-1", "key-of-admin") as one,
        keyed("router-2", "key-of-admin", beside=one) as same,
        keyed("router-3", "another", beside=one) as other,
    ):
        for each, key, wanted, why in (
            (same, "key-of-admin", 409, "no request"),
            (other, "another", 403, "router router-1 fits, and has another admin key"),
        ):
            await fits(each, False)
            headers = {"Authorization": f"Bearer {key}"}
            async with each.session.post(f"{each.url}/admin/refit", headers=headers) as answer:
                assert answer.status == wanted
                assert why in (await answer.json())["error"]["message"]


@asynccontextmanager
async def carrying_out(
    profile: str, keys: Keyring = OPEN
) -> AsyncIterator[tuple[Site, RefitOrders]]:
    """Orders at a router that fits, with requests to fit on."""
    site, ends = Site(profile), Ends([])
    orders = RefitOrders(site.locality, SharedCentroids(site.locality, ends), ends, keys)  # type: ignore[arg-type]
    site.observe(KNOWN * 20)
    site.locality.start()
    try:
        yield site, orders
    finally:
        await site.locality.stop()


def asked(order: str, sender: str = "x", proof: str = "", **more: Any) -> Notice:
    body = msgspec.json.encode({"order": order, "force": False, **more}).decode()
    return Notice(sender, f"id-{order}", "refit", own_name(), body=body, proof=proof)


async def over(orders: RefitOrders, notice: Notice) -> RefitAnswer:
    """Asked until it is over."""
    while (answer := await orders.take_notice(notice)).status == refit_orders.RUNNING:
        pass
    return answer


async def test_an_order_that_is_asked_about_again_is_carried_out_once(
    profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit_orders, "LOOK_S", 0.01)
    async with carrying_out(profile) as (site, orders):
        first = await orders.take_notice(asked("1"))
        assert first.status == refit_orders.RUNNING
        answer = await over(orders, asked("1", begun=True))
        assert (answer.status, answer.told["result"]) == (200, "declined")
        assert answer.told["router"] == own_name()
        assert await orders.take_notice(asked("1")) == answer, "its answer may have been lost"
        assert len(site.told("manual")) == 1
        lost = await orders.take_notice(asked("2", begun=True))
        assert lost.status == 503 and "lost the order" in lost.message
        assert (await orders.take_notice(asked("1", sender="y", begun=True))).status == 503


async def test_so_many_orders_are_kept(profile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refit_orders, "LOOK_S", 0.01)
    monkeypatch.setattr(refit_orders, "ORDERS_MAX", 2)
    async with carrying_out(profile) as (_, orders):
        for name in ("1", "2"):
            assert (await orders.take_notice(asked(name))).status == refit_orders.RUNNING
        assert (await orders.take_notice(asked("3"))).status == 503
        for name in ("1", "2"):
            assert (await over(orders, asked(name))).status == 200
        assert (await over(orders, asked("3"))).status == 200
        assert len(orders._orders) == 2


async def test_an_order_without_the_admins_key_is_refused(profile: Any) -> None:
    keys = Keyring([("alice", "key-of-alice")], "key-of-admin")
    async with carrying_out(profile, keys) as (site, orders):
        for key in ("", "Bearer key-of-alice"):
            caller = keys.caller(key) or Caller()
            forged = asked("1", proof=proof_of(caller, asked("1").signed) or "0" * 64)
            assert (await orders.take_notice(forged)).status == 403
        assert not site.told("manual") and not orders._orders
        admin_key = keys.caller("Bearer key-of-admin")
        assert admin_key is not None
        vouched = asked("1", proof=proof_of(admin_key, asked("1").signed))
        assert (await over(orders, vouched)).status == 200


async def test_who_loses_the_fit_meanwhile_says_that_one_is_to_ask_again(profile: Any) -> None:
    async with carrying_out(profile) as (site, orders):
        order = asyncio.create_task(orders.order(Caller(admin=True), False))
        await asyncio.sleep(0.01)
        site.locality.follow(True)
        with pytest.raises(ApiError, match="ask again") as found:
            await order
        assert (found.value.status, found.value.retry_after) == (503, refit_orders.RETRY_S)
        with pytest.raises(FittedElsewhere):
            await site.locality.refit_now()
        with pytest.raises(ApiError, match="has gone"):
            await orders.order(Caller(admin=True), False)
