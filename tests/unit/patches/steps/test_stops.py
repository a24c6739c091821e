"""When a batch stood still, noted on it."""

from types import SimpleNamespace

from patches.steps.stops import Stop, note, stops_of


def test_only_those_of_the_forward_that_runs_are_told() -> None:
    batch = SimpleNamespace(launch_ts=10.0)
    assert stops_of(batch) == []
    first, second = Stop(10.5, 10.75, 0.1, 3), Stop(11.0, 11.5, 0.2, 4)
    note(batch, first)
    note(batch, second)
    assert stops_of(batch) == [first, second]
    assert [stop.seconds for stop in stops_of(batch)] == [0.25, 0.5]
    batch.launch_ts = 12.0  # the batch goes on as a decode batch
    assert stops_of(batch) == []
