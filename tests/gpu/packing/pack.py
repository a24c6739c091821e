"""Makes the parcels: SGLang, its kernels and needs first, then what moves KV."""

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.errors import GpuCheckError
from tests.gpu.packing import download, manifest, parcels, wheel
from tests.gpu.packing.manifest import Manifest, Packed
from tests.gpu.packing.wanted import (
    KERNEL,
    MOONCAKE,
    NIXL,
    PYTHON,
    exact_pins,
    left_behind,
    needs,
)
from toolkit.setup import layout, lockfile
from toolkit.setup.lockfile import normalise

MIB = 2**20
CARRIED_MIB = 64
"""What the device tool takes in one call, the checkout included."""


@dataclass(frozen=True)
class Item:
    """A file that is to travel, and what of it stays behind."""

    path: Path
    group: str
    patterns: tuple[str, ...] = ()


def pack(folder: Path, sglang: str, arch: str, parcel_mib: float, cache: Path) -> Manifest:
    """Download what is missing in `cache`, and write the parcels to `folder`, which must be empty
    or hold older parcels (those are replaced).

    GpuCheckError: the folder is something else, or the index has not what is wanted.
    """
    clear(folder)
    lock = lockfile.parse(layout.here().requirements.read_text())
    first = download.wheels({"sglang": sglang}, cache)["sglang"]
    wanted = needs(lock, exact_pins(wheel.metadata(first)))
    beyond = {**NIXL, **MOONCAKE}
    found = download.wheels({**wanted, **beyond}, cache)
    groups = dict.fromkeys(NIXL, "nixl") | dict.fromkeys(MOONCAKE, "mooncake")
    items = [Item(first, "sglang")]
    order = [KERNEL, *(name for name in wanted if name != KERNEL), *NIXL, *MOONCAKE]
    for name in order:
        items.append(Item(found[name], groups.get(name, "sglang"), left_behind(name, arch)))
    debs, _ = download.system_packages(cache)
    items += [Item(path, "mooncake") for path in debs]
    return write(items, folder, sglang, arch, parcel_mib)


def clear(folder: Path) -> None:
    """Make `folder`, without the parcels of another time. GpuCheckError: it holds other things."""
    folder.mkdir(parents=True, exist_ok=True)
    there = list(folder.iterdir())
    strange = [path.name for path in there if not path.name.startswith("parcel-")]
    if strange:
        raise GpuCheckError(f"{folder} holds {strange[0]}: name an empty folder for the parcels")
    for path in there:
        shutil.rmtree(path)


def write(
    items: Iterable[Item], folder: Path, sglang: str, arch: str, parcel_mib: float
) -> Manifest:
    """Slim the items and cut them into parcels below `folder`, each with the manifest."""
    cutter = parcels.Cutter(folder, int(parcel_mib * MIB))
    files = []
    slim = folder / "parcel-slim"
    slim.mkdir()
    for item in items:
        path, dropped = item.path, 0
        if item.patterns:
            path = slim / item.path.name
            dropped = wheel.slimmed(item.path, path, item.patterns)
            if not dropped and item.path.name.startswith("sglang_kernel-"):
                raise GpuCheckError(f"{item.path.name} has none of {', '.join(item.patterns)}")
        files.append(_packed(item, path, dropped, cutter))
    shutil.rmtree(slim)
    made = Manifest(sglang, PYTHON, arch, tuple(files))
    for name in made.parcels():
        made.write(folder / name)
    return made


def _packed(item: Item, path: Path, dropped: int, cutter: parcels.Cutter) -> Packed:
    separator = "-" if item.path.suffix == ".whl" else "_"
    project, version = item.path.name.split(separator)[:2]
    return Packed(
        name=item.path.name,
        group=item.group,
        project=normalise(project),
        version=version,
        bytes=path.stat().st_size,
        sha256=manifest.sha256(path),
        original=item.path.stat().st_size,
        dropped=dropped,
        pieces=cutter.add(path, item.path.name),
    )


def checkout_mib(root: Path) -> float:
    """What a copy of the working tree takes: tracked and untracked-not-ignored files."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-c", "-o", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    paths = {root / name for name in done.stdout.split("\0") if name}
    return sum(path.stat().st_size for path in paths if path.is_file()) / MIB


def report(made: Manifest, root: Path) -> list[str]:
    """Lines for a person: sizes of groups and parcels, and what fits beside the checkout."""
    lines = [f"{'group':<10} {'files':>5} {'as released':>12} {'packed':>10}"]
    for group in dict.fromkeys(file.group for file in made.files):
        mine = [file for file in made.files if file.group == group]
        whole, packed = (sum(getattr(f, key) for f in mine) / MIB for key in ("original", "bytes"))
        lines.append(f"{group:<10} {len(mine):>5} {whole:>8.1f} MiB {packed:>6.1f} MiB")
    for file in made.files:
        if file.dropped:
            told = f"{file.original / MIB:.1f} -> {file.bytes / MIB:.1f} MiB"
            lines.append(f"  {file.name}: {file.dropped} files left behind, {told}")
    sizes = made.parcels()
    lines += [f"{name}: {size / MIB:.1f} MiB" for name, size in sizes.items()]
    own = checkout_mib(root)
    room = CARRIED_MIB - own
    lines.append(f"the checkout itself: {own:.1f} MiB, travels with every call of the device tool")
    if max(sizes.values(), default=0) / MIB > room:
        lines.append(
            f"a call takes {CARRIED_MIB} MiB in all, so a parcel beside this checkout may have "
            f"{room:.1f}: --parcel-mib {int(room)} makes such"
        )
    return lines
