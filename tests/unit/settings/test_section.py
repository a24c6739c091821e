"""A section: strict, one telling a key, short forms, keys without a value."""

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from toolkit.contract.waiting import Waiting
from toolkit.resources import recipes_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.processes import Restart
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.section import Router
from toolkit.settings.rules import CPU, Device, KeyRule, rules_of
from toolkit.settings.schema import schema
from toolkit.settings.section import Count, Section, key


class Inner(Section):
    size: Count = key(3, "how large", CPU)


class Outer(Section):
    NEVER_EMPTY = frozenset({"must"})
    must: int = key(1, "needs a value")
    may: int = key(2, "needs none")


def test_a_short_form_is_its_key() -> None:
    made = Deployment.model_validate({"name": "a", "model": "/m", "prefill": {"waiting": "sjf"}})
    assert made.model.path == "/m" and made.prefill.waiting == Waiting(order="sjf")
    made = Deployment.model_validate({"name": "a", "router": {"rebalance": False}})
    assert made.router.rebalance is not None and not made.router.rebalance.on


def test_a_key_without_a_value_is_as_one_left_out_where_it_may_be() -> None:
    made = Outer.model_validate({"may": None})
    assert made.may == 2 and made.said == {} and not made.says("may")
    assert Outer(may=2).said == {"may": 2}
    for wrong in ({"must": None}, {"other": None}):
        with pytest.raises(ValidationError):
            Outer.model_validate(wrong)
    with pytest.raises(ValidationError):
        Inner.model_validate({"size": None})  # says nothing of keys without value


@pytest.mark.parametrize("name", sorted(Router.NEVER_EMPTY - {"args"}))
def test_some_keys_of_the_router_need_a_value(name: str) -> None:
    with pytest.raises(ValidationError):
        Router.model_validate({name: None})


def test_restart_may_leave_to_the_device_what_depends_on_it() -> None:
    made = Restart.model_validate({"stuck_s": None, "announced_s": 7})
    assert made.said == {"announced_s": 7.0}
    with pytest.raises(ValidationError):
        Restart.model_validate({"window": None})


def test_rules_bounds_and_meanings_stand_where_a_key_is_declared() -> None:
    assert rules_of(Inner, Device) == {"size": CPU} and rules_of(Inner, KeyRule) == {}
    with pytest.raises(ValidationError):
        Inner(size=0)
    assert Inner.model_fields["size"].description == "how large"


def test_what_the_router_may_be_told_in_both_files_is_told_once() -> None:
    both = Router.model_fields.keys() & RouterConfig.model_fields.keys()
    own = {"port", "admin_port"}  # the launcher finds free ones
    assert len(both) > 40
    for name in both - own:
        section, file = Router.model_fields[name], RouterConfig.model_fields[name]
        assert (section.default, section.annotation) == (file.default, file.annotation), name
        assert section.description == file.description and section.metadata == file.metadata, name


def test_the_schema_takes_every_recipe_and_refuses_what_is_wrong() -> None:
    check = jsonschema.Draft202012Validator(schema())
    check.check_schema(check.schema)
    for recipe in recipes_dir().glob("*.yaml"):
        assert not list(check.iter_errors(yaml.safe_load(recipe.read_text()))), recipe.name
    for short in ({"model": "/m"}, {"router": "none"}, {"prefill": {"waiting": "sjf"}}):
        assert check.is_valid({"name": "a", **short})
    for wrong in ({}, {"name": "a", "folder": "/"}, {"name": "a", "router": {"tau": 2}},
                  {"name": "a", "decode": {"replica": 2}}, {"name": "a b"},
                  {"name": "a", "router": "nginx"},
                  {"name": "a", "router": {"rebalance": 1}}):  # fmt: skip
        assert not check.is_valid(wrong), wrong
