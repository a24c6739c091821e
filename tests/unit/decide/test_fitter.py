"""Who of several routers fits centroids: one of them, and it begins from the newest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.decide.fitter import fitter, follows, newest

NAMES = st.frozensets(st.text("abc", min_size=1, max_size=2), min_size=1)


@given(NAMES, NAMES)
def test_routers_that_hear_of_the_same_ones_have_one_fitter(
    names: frozenset[str], silent: frozenset[str]
) -> None:
    alive = names - silent
    found = {fitter(own, names - {own}, silent) for own in alive}
    assert len(found) == bool(alive) and found <= alive


@given(NAMES, NAMES)
def test_nobody_waits_for_one_that_does_not_answer(
    names: frozenset[str], silent: frozenset[str]
) -> None:
    for own in names:
        assert fitter(own, names, silent) not in silent - {own}


@given(st.integers(0, 5), st.dictionaries(st.text("abc", max_size=2), st.integers(0, 5)))
def test_centroids_of_more_fits_are_taken_and_no_others(own: int, others: dict[str, int]) -> None:
    found = newest(own, others)
    if found is None:
        assert all(serial <= own for serial in others.values())
    else:
        assert others[found] == max(others.values()) > own


def look(name: str, routers: dict[str, int]) -> None:
    """What a router does when it looks at the others; `routers`: the fits that each has."""
    others = {each: serial for each, serial in routers.items() if each != name}
    fits = fitter(name, others)
    if fits == name:
        best = newest(routers[name], others)
        routers[name] = routers[name] if best is None else others[best]
    elif follows(routers[name], others[fits]):
        routers[name] = others[fits]


@given(
    st.data(),
    st.dictionaries(st.text("abcd", min_size=1, max_size=2), st.integers(0, 9), min_size=1),
)
def test_the_newest_centroids_are_never_lost_and_all_have_them_in_the_end(
    data: st.DataObject, routers: dict[str, int]
) -> None:
    """Whoever comes, in whatever order they look at each other."""
    most = max(routers.values())
    for name in data.draw(st.lists(st.sampled_from(sorted(routers)), max_size=12)):
        look(name, routers)
        assert max(routers.values()) == most
    for name in sorted(routers):
        look(name, routers)
    assert set(routers.values()) == {most}
