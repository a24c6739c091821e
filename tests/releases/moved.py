"""What a release of SGLang moved under our patches: an upgrade's reading list.

    python -m tests.releases.moved 0.5.22 0.5.23 [--diff] [--patch NAME]

1. *Contracts*: symbols that are gone or take other arguments, and the variants that were taken.
2. *Names* that our patches use and that the newer release does not have anywhere.
3. *Flags* that our code reads and whose type, default or meaning (help) is another. A flag may mean
   the opposite under its old name: in 0.5.22 `disaggregation_decode_host_receive_threshold` did.
4. *Functions* that our patches hook or call and whose source is another, by patch, with the number
   of changed lines; their diffs with `--diff`. What is the same needs no reading.
"""

import argparse
import difflib
from dataclasses import dataclass

from patches.base import Patch
from patches.registry import ALL
from tests.releases import names
from tests.releases.fetch import contract, source
from tests.releases.source import Source


@dataclass(frozen=True)
class Changed:
    """A function, class or module of SGLang's that differs; `lines` of its unified `diff` do."""

    patch: str
    symbol: str
    hooked: bool
    diff: tuple[str, ...]

    @property
    def lines(self) -> int:
        return sum(line[:1] in "+-" for line in self.diff[2:])


def changed(one: Source, other: Source) -> tuple[list[Changed], int]:
    """What differs of everything that patches hook or call, and how many are the same."""
    found, same, seen = [], 0, set[str]()
    for patch in ALL:
        for symbol, hooked in _symbols(patch):
            if symbol in seen or not symbol.startswith("sglang."):
                continue
            seen.add(symbol)
            texts = [each.text(symbol) for each in (one, other)]
            if texts[0] == texts[1]:
                same += 1
                continue
            lines = [(text or "").splitlines() for text in texts]
            diff = tuple(difflib.unified_diff(*lines, lineterm="", n=3))  # type: ignore[arg-type, misc]
            found.append(Changed(patch.name, symbol, hooked, diff))
    return found, same


def _symbols(patch: Patch) -> list[tuple[str, bool]]:
    hooks = [*patch.hooks, *(hook for each in patch.variants for hook in each.hooks)]
    requires = [*patch.requires, *(name for each in patch.variants for name in each.requires)]
    return [(hook.target, True) for hook in hooks] + [(name, False) for name in requires]


def flags(one: Source, other: Source) -> list[tuple[str, str, str]]:
    """Name, old and new declaration of the flags that our code names; empty: it is gone."""
    before, after = one.flags(), other.flags()
    asked = names.flags_used()
    rows = [(name, text, after.get(name, "")) for name, text in sorted(before.items())]
    return [row for row in rows if row[0] in asked and row[1] != row[2]]


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--diff", action="store_true", help="the functions' diffs, too")
    parser.add_argument("--patch", help="of this patch only")
    options = parser.parse_args()
    one, other = source(options.old), source(options.new)

    print(f"# SGLang {options.old} -> {options.new}\n\n## Contracts")
    verdicts = contract(options.new)
    moved = [each for each in verdicts if each.problem]
    print(f"{len(verdicts)} symbols, {len(moved)} moved")
    for each in moved:
        print(f"- {each.patch}: {each.problem}")
    for each in verdicts:
        if each.variant:
            print(f"  {each.patch}: variant {each.variant}")

    print("\n## Names that are gone")
    for name, files in names.vanished(one, other).items():
        print(f"- {name} ({', '.join(sorted(files))}): {names.KNOWN.get(name, 'TO DO')}")

    print("\n## Flags that mean something else")
    for name, before, after in flags(one, other):
        print(f"- {name}\n  - {before}\n  + {after or 'gone'}")

    print("\n## Functions that are not the same")
    rows, same = changed(one, other)
    for row in rows:
        if options.patch in (None, row.patch):
            kind = "hooks" if row.hooked else "calls"
            print(f"- {row.patch} {kind} {row.symbol}: {row.lines} lines")
            if options.diff:
                print("\n".join(f"    {line}" for line in row.diff))
    print(f"{len(rows)} differ, {same} are the same")


if __name__ == "__main__":
    main()
