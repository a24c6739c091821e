"""A patch that differs from release to release takes the variant that fits what is installed."""

import pytest

from patches.base import EITHER, Hook, Patch, PatchError, Variant, fitted, fitting


def around(original: object, text: str) -> object:
    return original


OLD = Variant("to 1.0", hooks=(Hook("textwrap.no_such_function", around, ("text",)),))
NEW = Variant("from 1.1", hooks=(Hook("textwrap.dedent", around, ("text",)),))
OTHER = Variant("from 1.2", hooks=(Hook("textwrap.dedent", around, ("words",)),))


def patch(*variants: Variant, requires: tuple[str, ...] = ()) -> Patch:
    return Patch("folded", "a test", EITHER, requires=requires, variants=variants)


@pytest.mark.parametrize("variants", [(NEW,), (OLD, NEW), (OTHER, OLD, NEW), (NEW, OLD)])
def test_the_first_that_fits_is_taken(variants: tuple[Variant, ...]) -> None:
    found, name = fitting(patch(*variants, requires=("textwrap.fill",)))
    assert name == "from 1.1"
    assert [hook.target for hook in found.hooks] == ["textwrap.dedent"]
    assert found.requires == ("textwrap.fill",)


def test_none_fits_and_each_says_why() -> None:
    with pytest.raises(PatchError) as raised:
        fitted([patch(OLD, OTHER)])
    said = str(raised.value)
    assert said.startswith("patch folded: ")
    assert "to 1.0: textwrap.no_such_function does not exist" in said
    assert "from 1.2: textwrap.dedent takes (text), the patch was written for (words)" in said


def test_a_variant_does_not_make_up_for_what_all_releases_have() -> None:
    with pytest.raises(PatchError, match="no_such_name"):
        fitting(patch(NEW, requires=("textwrap.no_such_name",)))


def test_which_were_taken_is_told_of_those_that_have_several() -> None:
    plain = Patch("plain", "a test", EITHER, requires=("textwrap.fill",))
    _, chosen = fitted([plain, patch(NEW)])
    assert chosen == {"folded": "from 1.1"}
