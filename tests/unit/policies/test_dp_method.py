"""What may choose the rank of a request inside SGLang's DP controller, and why not."""

from __future__ import annotations

import pytest

from toolkit.policies.dp_method import SGLANGS, by_signature, check_method


@pytest.mark.parametrize("name", [*SGLANGS, "br0", "gimbal", "kv_shortest_queue"])
def test_sglangs_own_and_ours_may(name: str) -> None:
    check_method(name)


def test_expert_locality_may_with_a_profile() -> None:
    check_method("eldr", "decode", profile=True)
    assert by_signature("eldr") and not by_signature("br0") and not by_signature(None)


@pytest.mark.parametrize(
    ("name", "profile", "said"),
    [
        ("pooled@shortest_queue", False, "has no pool; write shortest_queue"),
        ("label_oracle", False, "needs the requests' labels"),
        ("eldr", False, "needs a profile"),
        ("eldr@artifact", True, "refits its centroids by the clock"),
        ("nonsense", False, "and SGLang's own: auto, round_robin"),
    ],
)
def test_others_are_refused_with_what_to_write(name: str, profile: bool, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_method(name, "decode", profile)
