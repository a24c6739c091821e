"""Parcels into a folder that PYTHONPATH can name; any of them first, each as it comes.

Pieces wait in `FOLDER/.parcels` until their file is whole; then pip unpacks it and they go. What
has been unpacked is noted by its digest, so that a second call does only what is left.
"""

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.gpu.errors import GpuCheckError
from tests.gpu.packing import manifest
from tests.gpu.packing.manifest import Manifest, Packed, Piece
from tests.gpu.packing.parcels import joined
from tests.gpu.packing.wanted import PLATFORMS, PYTHON

ABSENT = Path("tests/gpu/absent")
"""In the checkout: what stands in for FlashInfer."""
SPOOL, DONE, SYSTEM, WHOLE = ".parcels", ".parcels/unpacked.json", "system", "whole"


@dataclass(frozen=True)
class State:
    """`left` by group: files of which pieces have not come yet. `parcels`: those that hold them."""

    done: int
    left: dict[str, int]
    parcels: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return not self.left


def unpack(source: Path, into: Path, root: Path) -> State:
    """Unpack what is in `source` (a parcel, or a folder of parcels) into `into`, which must be
    empty or begun by an earlier call, and make the plugin of the checkout `root` known there.

    GpuCheckError: a piece is not what the manifest says, or the parcels are of two packings.
    """
    found = _parcels(source)
    made = _one_manifest([parcel / manifest.NAME for parcel in found], into)
    done = _noted(into)
    for file in made.files:
        if file.sha256 not in done:
            _collect(file, found, into / SPOOL)
    ready = [f for f in made.files if f.sha256 not in done and _all_here(f, into / SPOOL)]
    _install([_whole(file, into / SPOOL) for file in ready], into)
    done += [file.sha256 for file in ready]
    (into / DONE).write_text(json.dumps(done))
    for piece in (piece for file in ready for piece in file.pieces):
        (into / SPOOL / piece.name).unlink()
    shutil.rmtree(into / SPOOL / WHOLE, ignore_errors=True)
    entry_points(root, into)
    return _state(made, done, into / SPOOL)


def _parcels(source: Path) -> list[Path]:
    found = [source] if (source / manifest.NAME).exists() else []
    found += sorted(path.parent for path in source.glob(f"*/{manifest.NAME}"))
    if not found:
        raise GpuCheckError(f"{source} is no parcel and holds none: make some with --pack {source}")
    return found


def _one_manifest(paths: list[Path], into: Path) -> Manifest:
    """The manifest that all parcels share, also with those of earlier calls."""
    kept = into / SPOOL / manifest.NAME
    if into.exists() and any(into.iterdir()) and not kept.exists():
        raise GpuCheckError(f"{into} holds other things: name an empty folder")
    every = [manifest.read(path) for path in [*paths, *([kept] if kept.exists() else [])]]
    if any(other != every[0] for other in every):
        raise GpuCheckError(
            f"the parcels are of different packings, or {into} was begun with others: "
            "pack once, and unpack into an empty folder"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    every[0].write(kept.parent)
    return every[0]


def _noted(into: Path) -> list[str]:
    path = into / DONE
    return json.loads(path.read_text()) if path.exists() else []


def _collect(file: Packed, parcels: list[Path], spool: Path) -> None:
    for piece in file.pieces:
        for path in (parcel / piece.name for parcel in parcels if parcel.name == piece.parcel):
            if not path.exists():
                raise GpuCheckError(f"{path} is missing: copy that parcel again")
            if not _right(path, piece):
                raise GpuCheckError(
                    f"{path} is damaged ({path.stat().st_size} bytes, {piece.bytes} expected, or "
                    "another SHA-256): copy that parcel again"
                )
            if not _right(spool / piece.name, piece):
                shutil.copyfile(path, spool / piece.name)


def _right(path: Path, piece: Piece) -> bool:
    whole = path.exists() and path.stat().st_size == piece.bytes
    return whole and manifest.sha256(path) == piece.sha256


def _all_here(file: Packed, spool: Path) -> bool:
    return all(_right(spool / piece.name, piece) for piece in file.pieces)


def _whole(file: Packed, spool: Path) -> Path:
    """The file put together from its pieces."""
    whole = spool / WHOLE / file.name
    whole.parent.mkdir(exist_ok=True)
    joined([(piece, spool / piece.name) for piece in file.pieces], whole)
    if manifest.sha256(whole) != file.sha256:
        raise GpuCheckError(f"{file.name} is not what was packed: copy its parcels again")
    return whole


def _install(files: list[Path], into: Path) -> None:
    """All at once: a pip takes a second to begin."""
    commands = [
        ["dpkg-deb", "--extract", str(path), str(into / SYSTEM)]
        for path in files
        if path.suffix == ".deb"
    ]
    if wheels := [str(path) for path in files if path.suffix == ".whl"]:
        pip = [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
            "--no-compile", "--no-input", "--disable-pip-version-check", "--upgrade",
            "--target", str(into), "--only-binary=:all:", "--implementation", "cp",
            "--python-version", PYTHON, *(f"--platform={name}" for name in PLATFORMS),
        ]  # fmt: skip
        commands.append(pip + wheels)
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GpuCheckError(f"{command[0]} cannot unpack:\n{done.stdout}{done.stderr}")


def entry_points(root: Path, into: Path) -> None:
    """What `pip install` of the checkout would note: by it SGLang finds the plugin."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    folder = into / f"{project['name']}-0.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _state(made: Manifest, done: list[str], spool: Path) -> State:
    left: dict[str, int] = {}
    parcels = set()
    for file in made.files:
        if file.sha256 in done:
            continue
        left[file.group] = left.get(file.group, 0) + 1
        lacking = {p.parcel for p in file.pieces if not (spool / p.name).exists()}
        parcels |= lacking
    return State(len(made.files) - sum(left.values()), left, tuple(sorted(parcels)))


def environment(into: Path, root: Path, before: str = "") -> dict[str, str]:
    """Variables with which a process finds what was unpacked, and this checkout."""
    path = [str(root), str(into.absolute()), *([before] if before else [])]
    found = {"PYTHONPATH": ":".join(path)}
    if not (into / "flashinfer").exists() and find_spec("flashinfer") is None:
        found["PYTHONPATH"] += f":{root / ABSENT}"
        found["SGLANG_IS_FLASHINFER_AVAILABLE"] = "false"
    libraries = into.absolute() / SYSTEM / "usr/lib/x86_64-linux-gnu"
    if libraries.is_dir():
        found["LD_LIBRARY_PATH"] = str(libraries)
    return found
