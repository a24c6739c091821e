"""Connections without a key: bounded, and an address that opens many closes its own."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from toolkit.router.strangers import Strangers


@given(
    st.integers(1, 6),
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 9)), min_size=20, max_size=60
    ),
)
@settings(max_examples=examples(200), deadline=None)
def test_they_are_bounded_and_the_crowded_address_makes_way(
    most: int, steps: list[tuple[bool, int, int]]
) -> None:
    strangers: Strangers[int] = Strangers(most)
    here: dict[int, int] = {}
    for number, (comes, address, which) in enumerate(steps):
        if not comes:
            one = list(here)[which % len(here)] if here else -1
            here.pop(one, None)
            strangers.remove(one)
            continue
        gone = strangers.add(number, str(address))
        assert (gone is None) == (len(here) < most)
        if gone is not None:
            counts = [list(here.values()).count(each) for each in range(4)]
            assert counts[here[gone]] >= most / len(set(here.values()) | {address})
            mine = [one for one in here if here[one] == here[gone]]
            assert gone == mine[0], "the oldest of its address"
            del here[gone]
        here[number] = address
        assert len(strangers) == len(here) <= most
    for one in here:
        strangers.remove(one)
    assert (len(strangers), strangers._of) == (0, {})


def test_one_address_that_opens_thousands_closes_none_of_another_s() -> None:
    strangers: Strangers[str] = Strangers(100)
    strangers.add("honest", "a")
    gone = [strangers.add(f"greedy {i}", "b") for i in range(1000)]
    assert "honest" not in gone
    gone = [strangers.add(f"honest {i}", "c") for i in range(33)]
    assert all(str(each).startswith("greedy") for each in gone)
