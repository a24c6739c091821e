"""Ports of tests that run side by side."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.ports import HIGH, LOW, free_port, part


@given(st.integers(1, 64))
def test_no_port_is_of_two_processes(count: int) -> None:
    parts = [range(*part(f"gw{number}", count)) for number in range(count)]
    assert all(one.stop <= other.start for one, other in pairwise(parts))
    assert parts[0].start == LOW and parts[-1].stop <= HIGH
    assert all(len(each) >= 70 for each in parts)


def test_the_only_process_has_them_all() -> None:
    assert part("", 1) == (LOW, HIGH)


def test_ports_do_not_run_out() -> None:
    size = (HIGH - LOW) // 64
    assert len({free_port(size) for _ in range(66)}) > 1
