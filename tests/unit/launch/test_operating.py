"""What the commands say of moves and drains."""

from typer.testing import CliRunner

from toolkit.cli.main import app
from toolkit.cli.migrate import lines
from toolkit.cli.status import faults_line, moves_line
from toolkit.launch.operate import Drained


def test_a_line_for_each_request_and_each_reason() -> None:
    moved = {"rid": "a", "from": "decode-0", "to": "decode-1", "outcome": "moved"}
    told = {
        "moves": [
            {**moved, "tokens": 412, "kind": "replay", "stall_ms": 34.4},
            {"rid": "b", "from": "decode-0", "to": None, "outcome": "kept", "reason": "no room"},
        ],
        "stays": {"its answer does not stream": 2},
    }
    assert lines(told) == [
        "a: decode-0 -> decode-1 (412 tokens, replay, stalled 34 ms)",
        "b: kept: no room",
        "2 stay: its answer does not stream",
    ]
    assert lines({"moves": [], "stays": {}}) == ["nothing runs there"]


def test_a_drain_says_what_moved_and_what_is_left() -> None:
    empty = Drained("decode-0", 3, 0, {}, 1.25)
    assert str(empty) == "decode-0: empty after 1.2 s (3 moved, nothing left)"
    left = Drained("decode-0", 0, 2, {"its answer does not stream": 2}, 5.0)
    assert str(left) == "decode-0: 2 left after 5.0 s (2: its answer does not stream)"
    silent = Drained("decode-0", 1, 0, {}, 3.0, {"b-7-ff": "no answer"})
    assert str(silent) == "decode-0: 0 left after 3.0 s (1 moved, router b-7-ff: no answer)"
    assert empty.empty and not left.empty and not silent.empty


def test_status_adds_moves_up() -> None:
    replay = {"why": "drain", "kind": "replay", "outcome": "moved", "count": 3}
    direct = {**replay, "kind": "direct", "count": 2}
    moves = {"outcomes": [replay, direct], "tokens": 700, "stall_ms": {"p50": 34.2, "p99": 90.9}}
    assert moves_line(moves) == (
        "moves: 5 moved (drain); 700 KV tokens; stalls in ms: p50 34, p99 91"
    )
    assert moves_line({"outcomes": [], "tokens": 0, "stall_ms": {}}) == ""


def test_status_says_what_no_worker_s_row_says() -> None:
    pair = {"prefill": "prefill-0", "decode": "decode-1", "left_out": True}
    said = {"empty_roles": ["plain"], "pairs": [pair, pair | {"left_out": False}]}
    assert faults_line(said) == (
        "faults: no plain worker takes requests; no KV gets from prefill-0 to decode-1"
    )
    assert faults_line({"empty_roles": [], "pairs": []}) == faults_line({}) == ""


def test_orders_that_contradict_themselves_are_refused_before_anything_is_asked() -> None:
    for words, says in [
        (["drain", "w", "--undo", "--stop"], "goes alone"),
        (["restart"], "--rolling"),
        (["restart", "w", "--rolling"], "--rolling"),
        (["restart", "w", "--prefill"], "goes with --rolling"),
        (["upgrade", "router", "--admin-key-env", "KEY"], "goes with --url"),
        (["upgrade", "router", "--url", "http://a", "--run", "b"], "give one of them"),
        (["upgrade", "router", "--url", "http://a", "--admin-key-env", "NO_SUCH"], "is not set"),
    ]:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2 and says in done.output, words
