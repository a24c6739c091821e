"""Published rules are chosen by name wherever a policy is."""

import pytest

from toolkit.bench.compare import Arm
from toolkit.plan import policy_text
from toolkit.policies import (
    POLICIES,
    PUBLISHED,
    check_policy,
    follows_experts,
    make_policy,
    policy_names,
)
from toolkit.policies.base import Refits
from toolkit.policies.dp_method import check_method
from toolkit.settings.deployment import Deployment
from toolkit.simulate.fleet import RouterFleet

CARRYING = [
    *PUBLISHED,
    "eldr@paper:0.05",
    "eldr@artifact:0",
    "br0@paper:0",
    "brh@paper:survival",
    "brh@paper:oracle:0:horizon=40",
    "brh@paper:beta=24",
    "gimbal@paper:0.8:0.2:500",
]


POLICIES_THAT_FOLLOW = ["eldr", "eldr@paper", "eldr@artifact", "pooled@eldr@artifact:0.05"]
POLICIES_THAT_FOLLOW += ["composed", "composed@eldr+br0", "unpooled@composed"]


@pytest.mark.parametrize("name", CARRYING)
def test_a_published_name_is_a_policy_s_name(name: str) -> None:
    check_policy(name, "decode")
    made = make_policy(name, 3, "decode")
    assert made.name == name
    assert isinstance(made, type(make_policy(name.partition("@")[0]))), "the same counters"
    if not name.startswith("eldr@artifact"):
        check_method(name, "decode", profile=True)
    assert RouterFleet(decode_policy=name).decode_policy == name
    router = {"decode_policy": name, "profile": "/p"}
    assert Deployment.model_validate({"name": "x", "router": router}).router.decode_policy == name
    assert Arm.parse(f"late:round_robin+{name}").body["decode"] == name
    assert Arm.parse(name).body == {"decode": name}
    assert policy_text.part(name, *POLICIES) is None, "the planner leaves it as it is"


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_documents_itself_and_says_what_is_not_in_it(name: str) -> None:
    text = type(make_policy(name)).__doc__ or ""
    for word in ("Formula", "Not in it", "Degraded", "Knobs", "Source"):
        assert word in text


def test_sides_are_those_of_the_policy() -> None:
    assert not [name for name in policy_names() if "@" in name]
    check_policy("gimbal@paper", "prefill")
    with pytest.raises(ValueError, match="unknown prefill policy 'br0@paper'") as got:
        check_policy("br0@paper", "prefill")
    assert "gimbal@paper" in str(got.value)
    assert "eldr@paper" not in str(got.value), "not of this side"


def test_those_that_need_a_profile_say_so() -> None:
    assert [name for name in PUBLISHED if follows_experts(name)] == ["eldr@paper", "eldr@artifact"]
    with pytest.raises(ValueError, match="needs a profile"):
        check_method("eldr@paper", "decode")


@pytest.mark.parametrize("name", ["eldr@artifact", "eldr@artifact:0.05"])
def test_inside_a_dp_controller_nobody_refits_by_the_clock(name: str) -> None:
    with pytest.raises(ValueError, match=r"refits its centroids by the clock.* eldr@paper"):
        check_method(name, "decode", profile=True)


def test_only_the_program_s_rule_is_refitted_by_the_clock() -> None:
    made = {name: make_policy(name, side="decode").locality for name in POLICIES_THAT_FOLLOW}
    assert {name for name, each in made.items() if each and each.refits} == {
        "eldr@artifact",
        "pooled@eldr@artifact:0.05",
    }
    assert make_policy("eldr@artifact").locality.refits == Refits(every_s=1.0, window_s=5.0)  # type: ignore[union-attr]


def test_the_configuration_s_tau_is_not_the_paper_s() -> None:
    made = [make_policy(n, tau=0.4) for n in ("eldr@paper", "eldr@paper:0.2", "eldr")]
    assert [each.locality and each.locality.tau for each in made] == [0.1, 0.2, 0.4]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("eldr@papr", r"tau = papr must be a number in \[0, 1\]; did you mean eldr@paper\?"),
        ("eldr@artefact", r"did you mean eldr@artifact\?"),
        ("br0@papre", r"did you mean br0@paper\?"),
        ("brh@papr:survival", r"did you mean brh@paper\?"),
        ("eldr@paper:", "tau =  must be a number"),
        ("eldr@paper:2", "tau = 2 must lie in"),
        ("eldr@paper@0.1", "must be a number"),
        ("br0@paper:x", "s_greedy = x must be a number of slots"),
        ("br0@artifact", "s_greedy = artifact must be a number of slots"),
        ("brh@paper:learned", "'learned' is no predictor of the paper: survival, exact_match, ora"),
        ("brh@paper:survival:gama=1", "did you mean gamma=VALUE"),
        ("brh@paper:horizon=x", "horizon = x must be a whole number"),
        ("gimbal@paper:2", "theta_kv = 2"),
        ("level@paper", "s_greedy = paper must be a number of slots"),
        ("composed@filter+eldr@paper", "eldr@paper is a rule by itself: write eldr here, or eldr@"),
        ("composed@brh@paper:survival", "is a rule by itself: write brh here"),
        ("elder@paper", "unknown decode policy 'elder@paper'"),
    ],
)
def test_wrong_names_say_what_is_known(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        check_policy(name, "decode")
    assert "known: " in str(caught.value) and "eldr@paper[:TAU]" in str(caught.value)
