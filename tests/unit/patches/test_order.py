"""Which patch wraps which: what they declare decides, and too little or too much is refused."""

import itertools
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from patches import base
from patches.base import EITHER, REFUSED_EXIT_CODE, Hook, Patch, PatchError, Process, Variant
from patches.layers import composed
from patches.order import inner_first, wrapped_symbols
from patches.registry import ALL, patches_for
from tests.sglang_python import run_python
from toolkit.contract.variables import WITHOUT_VARIABLE

SYMBOL = "textwrap.dedent"


def saying(name: str) -> Callable[..., str]:
    def around(original: Callable[[str], str], text: str) -> str:
        return f"{name}({original(text)})"

    return around


def patch(name: str, *targets: str, **declared: Any) -> Patch:
    hooks = tuple(Hook(target, saying(name), ("text",)) for target in targets or (SYMBOL,))
    return Patch(name, "a test", EITHER, hooks=hooks, **declared)


def names(patches: tuple[Patch, ...]) -> list[str]:
    return [each.name for each in patches]


def test_the_patches_say_of_each_two_on_one_symbol_which_wraps_which() -> None:
    in_order = inner_first(ALL)
    assert set(names(in_order)) == set(names(ALL))
    shared = {s: names(tuple(p)) for s, p in wrapped_symbols(in_order).items() if len(p) > 1}
    finished = [names for symbol, names in shared.items() if "process_batch_result_d" in symbol]
    assert finished == [
        [
            "first_token",
            "late_binding",
            "prefill_only",
            "early_send",
            "early_choice",
            "expert_capture",
        ]
    ]
    assert len(shared) > 20


def test_where_a_patch_stands_in_the_list_changes_nothing() -> None:
    assert names(inner_first(ALL)) == names(inner_first(ALL[::-1]))


@pytest.mark.parametrize(
    "patch", [each for each in ALL if each.after or each.independent_of], ids=lambda each: each.name
)
def test_what_a_patch_declares_cannot_be_left_out(patch: Patch) -> None:
    """Without it two patches are left of which nobody has said anything."""
    without = [replace(p, after={}, independent_of={}) if p is patch else p for p in ALL]
    with pytest.raises(PatchError, match="neither says in which order"):
        inner_first(without)


def test_what_is_declared_decides_who_is_inside() -> None:
    inner, middle = patch("z"), patch("m", after={"z": "why"})
    outer = patch("a", after={"m": "why"})  # around `z` too, as `m` is
    for given in itertools.permutations((inner, middle, outer)):
        assert names(inner_first(given)) == ["z", "m", "a"]


def test_either_order_of_two_that_are_independent() -> None:
    pair = patch("a"), patch("b", independent_of={"a": "why"})
    assert set(names(inner_first(pair))) == {"a", "b"}


@pytest.mark.parametrize(
    ("patches", "says"),
    [
        ([patch("a"), patch("b")], f"a and b both wrap {SYMBOL} and neither says"),
        (
            # `a` is around `c` and `b` around `c`: that says nothing of `a` and `b`.
            [patch("c"), patch("a", after={"c": "why"}), patch("b", after={"c": "why"})],
            "a and b both wrap",
        ),
        (
            # An order on another symbol is none on this one.
            [
                patch("a"),
                patch("b", "textwrap.fill", after={"c": "why"}),
                patch("c", SYMBOL, "textwrap.fill", independent_of={"a": "why"}),
                patch("d", after={"c": "why"}),
            ],
            "d both wrap textwrap.dedent",
        ),
        (
            [patch("a", after={"b": "why"}), patch("b", after={"a": "why"})],
            "goes in a circle: a, which is after b, which is after a",
        ),
        ([patch("a", after={"nobody": "why"})], "patch a: after names 'nobody', which is no patch"),
        ([patch("a", independent_of={"a": "why"})], "which is itself"),
        (
            [patch("a", after={"b": "why"}), patch("b", "textwrap.fill")],
            "patch a: after names 'b', but the two wrap no symbol in common",
        ),
        ([patch("a", after={"b": " "}), patch("b")], "names 'b' without saying why"),
        (
            [patch("a", after={"b": "why"}), patch("b", independent_of={"a": "why"})],
            "patch b: independent_of names 'a', of which the order is declared elsewhere",
        ),
    ],
    ids=[
        "nothing said",
        "siblings",
        "another symbol",
        "circle",
        "unknown",
        "itself",
        "not shared",
        "no reason",
        "both",
    ],
)
def test_what_does_not_fit_together_is_refused(patches: list[Patch], says: str) -> None:
    with pytest.raises(PatchError) as refused:
        inner_first(patches)
    assert says in str(refused.value)


def test_hooks_of_some_releases_only_need_an_order_too() -> None:
    old = Variant("to 1.0", hooks=(Hook(SYMBOL, saying("b"), ("text",)),))
    with pytest.raises(PatchError, match="neither says in which order"):
        inner_first([patch("a"), Patch("b", "a test", EITHER, variants=(old,))])


def test_what_an_attachment_puts_a_layer_around_needs_an_order_too() -> None:
    attaching = [
        Patch(name, "a test", EITHER, attach_to=("starlette.app.build",)) for name in ("a", "b")
    ]
    with pytest.raises(PatchError, match=r"wrap starlette\.app\.build"):
        inner_first(attaching)


def test_left_out_patches_leave_the_order_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """`prefill_only` is around `first_token` by way of `late_binding`."""
    whole = names(patches_for(Process.SCHEDULER, on_cpu=True))
    monkeypatch.setenv(WITHOUT_VARIABLE, "early_send,prefill_only")
    left = names(patches_for(Process.SCHEDULER, on_cpu=True))
    assert left == [name for name in whole if name not in ("early_send", "prefill_only")]


def test_composed_hooks_run_from_the_outermost_inwards() -> None:
    around = composed([saying("inner"), saying("middle"), saying("outer")])
    assert around(textwrap.dedent, "  x") == "outer(middle(inner(x)))"
    assert around(str.upper, "x") == "outer(middle(inner(X)))"  # of whatever function it is given
    assert composed([saying("only")])(textwrap.dedent, "x") == "only(x)"


def test_inner_hooks_see_the_function_that_they_wrap() -> None:
    seen = []

    def looks(original: Callable[[str], str], text: str) -> str:
        seen.append((original.__name__, original.__doc__))
        return original(text)

    composed([looks, looks])(textwrap.dedent, "x")
    assert seen == [("dedent", textwrap.dedent.__doc__)] * 2


def test_patches_are_not_put_in_before_what_they_wrap() -> None:
    given = [patch("a", after={"b": "why"}), patch("b")]
    with pytest.raises(PatchError, match="patch a is to wrap b and would be put in before it"):
        base._check_given_order(given)
    base._check_given_order(inner_first(given))
    base._check_given_order(given[:1])  # the other one is not in this process


def test_a_patch_with_two_hooks_on_one_symbol_is_refused() -> None:
    with pytest.raises(PatchError, match=f"patch a hooks {SYMBOL} twice"):
        base.hooks_of([patch("a", SYMBOL, SYMBOL)])


def test_one_function_under_two_names_is_refused() -> None:
    """`hooked` is by symbol; nobody declares an order of hooks on two of them."""

    class Derived(textwrap.TextWrapper): ...

    twice = {"a.TextWrapper.wrap": textwrap.TextWrapper.wrap, "a.Derived.wrap": Derived.wrap}
    with pytest.raises(PatchError, match=r"a\.TextWrapper\.wrap and a\.Derived\.wrap are one"):
        base._check_one_name(twice)
    base._check_one_name({"a.wrap": textwrap.wrap, "a.fill": textwrap.fill})


STARTED = """
from dataclasses import replace
import patches
from patches import registry
{changed}
patches.register()
from sglang.srt.plugins.hook_registry import HookRegistry
print("started", {{len(hooks) for hooks in HookRegistry._hooks.values()}})
"""
BY_NAME = """
def change(name, **changes):
    registry.ALL = tuple(
        replace(patch, **changes) if patch.name == name else patch for patch in registry.ALL
    )
"""
EVERY_SWITCH = {
    "TOOLKIT_MOVE": "1",
    "TOOLKIT_PAUSE": "strict",
    "TOOLKIT_PREEMPT": "strict",
    "TOOLKIT_EARLY_PLACE": "1",
    "TOOLKIT_RELOCATE": "1",
    "TOOLKIT_WORKER_KEY": "key",
    "SGLANG_HOST_IP": "127.0.0.1",
    "TOOLKIT_BATCH_TRACE": "/dev/null",
    "TOOLKIT_BACKGROUND": "1",
}


@pytest.mark.parametrize("process", ["MAIN", "SCHEDULER"])
def test_sglang_gets_one_hook_a_symbol_and_says_nothing(process: str) -> None:
    enter = f"from patches import base; base.enter(base.Process.{process})"
    done = run_python(STARTED.format(changed=enter), **EVERY_SWITCH)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "started {1}"
    assert "Multiple" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("change('parked', after={})", "first_token and parked both wrap"),
        ("change('first_token', after={'parked': 'why'})", "goes in a circle"),
        ("change('parked', after={'no_such': 'why'})", "'no_such', which is no patch"),
        (
            "from patches import registry as r; r.inner_first = lambda patches: patches[::-1]",
            "would be put in before it",
        ),
    ],
    ids=["nothing said", "circle", "unknown", "wrong order"],
)
def test_a_worker_whose_patches_are_in_no_order_refuses_to_start(changed: str, says: str) -> None:
    enter = "from patches import base; base.enter(base.Process.SCHEDULER)\n"
    done = run_python(STARTED.format(changed=enter + BY_NAME + changed), **EVERY_SWITCH)
    assert done.returncode == REFUSED_EXIT_CODE, done.stderr[-2000:]
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("toolkit: refused: ") and says in last, last
    assert "started" not in done.stdout
