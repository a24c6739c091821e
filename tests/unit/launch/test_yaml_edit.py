"""One key is put into a YAML file; every other character stays where it was."""

import pytest
import yaml

from toolkit.launch.errors import LaunchError
from toolkit.launch.yaml_edit import with_key
from toolkit.resources import recipes_dir

VALUE = [{"upto": 512, "replicas": 2}, {"replicas": 1}]
FLOW = "[{upto: 512, replicas: 2}, {replicas: 1}]"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("name: a  # mine\n", f"name: a  # mine\ndecode:\n  stages: {FLOW}\n"),
        ("name: a", f"name: a\ndecode:\n  stages: {FLOW}\n"),
        ("", f"decode:\n  stages: {FLOW}\n"),
        ("decode:  # none\nname: a\n", f"decode:\n  stages: {FLOW}  # none\nname: a\n"),
        ("decode: {}\nname: a\n", f"decode: {{stages: {FLOW}}}\nname: a\n"),
        ("decode: {tp: 2}  # two\n", f"decode: {{stages: {FLOW}, tp: 2}}  # two\n"),
        ("decode:  # big\n    # more\n    tp: 2\nname: a\n",
         f"decode:  # big\n    # more\n    stages: {FLOW}\n    tp: 2\nname: a\n"),
        ("decode:\n  stages: [{upto: 1}, {}]  # old\n  tp: 2\n",
         f"decode:\n  stages: {FLOW}  # old\n  tp: 2\n"),
        ("decode:\n  tp: 2\n  stages:\n  - {upto: 1}\n  - {}\n\n# end\nname: a\n",
         f"decode:\n  tp: 2\n  stages: {FLOW}\n\n# end\nname: a\n"),
        ("decode: {stages: [{}], tp: 2}\n", f"decode: {{stages: {FLOW}, tp: 2}}\n"),
        ("decode:\n  stages:\nname: a\n", f"decode:\n  stages: {FLOW}\nname: a\n"),
    ],
)  # fmt: skip
def test_a_key_is_put_in_or_replaced(before: str, after: str) -> None:
    assert with_key(before, "decode", "stages", VALUE) == after


@pytest.mark.parametrize("recipe", sorted(recipes_dir().glob("*.yaml")), ids=lambda r: r.stem)
def test_every_recipe_keeps_its_comments(recipe) -> None:  # type: ignore[no-untyped-def]
    text = recipe.read_text()
    changed = with_key(text, "decode", "stages", VALUE)
    data, old = yaml.safe_load(changed), yaml.safe_load(text)
    assert data["decode"].pop("stages") == VALUE
    old["decode"].pop("stages", None)
    assert data == old
    kept = [
        [line for line in each.splitlines() if "stages:" not in line] for each in (changed, text)
    ]
    assert kept[0] == kept[1]
    assert with_key(changed, "decode", "stages", VALUE) == changed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("decode: 4\n", "decode must be a mapping"),
        ("- 1\n", "decode must be a mapping"),
        ("decode: [\n", "not valid YAML"),
        ("a: &x {tp: 2}\ndecode: *x\n", "write it there yourself"),
    ],
)
def test_what_it_cannot_change_it_leaves_alone(text: str, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        with_key(text, "decode", "stages", VALUE, "f.yaml")
