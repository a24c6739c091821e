"""Parcels: cut, carried, damaged, put together again."""

import ensurepip
import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.gpu.errors import GpuCheckError
from tests.gpu.packing import manifest, pack, unpack, wheel
from tests.gpu.packing.pack import Item
from tests.gpu.packing.parcels import ROOM
from tests.gpu.packing.wanted import exact_pins, left_behind, needs
from tests.unit.gpu.fake_wheels import noise
from tests.unit.gpu.fake_wheels import wheel as made_wheel
from toolkit.setup import layout, lockfile

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 400 * 1024
"""Bytes of a parcel here: 144 KiB beside the manifest's room."""


@pytest.fixture
def items(tmp_path: Path) -> list[Item]:
    """One small wheel, one that takes three parcels, one of which something stays behind."""
    source = tmp_path / "wheels"
    kernel = {"sgl/__init__.py": b"", "sgl/flash_ops.so": noise(300_000, 1), "sgl/ops.so": b"ops"}
    return [
        Item(made_wheel(source, "small", {"small/__init__.py": b"NAME = 'small'\n"}), "sglang"),
        Item(made_wheel(source, "large", {"large/__init__.py": noise(380_000, 2)}), "sglang"),
        Item(made_wheel(source, "sgl", kernel), "nixl", ("*/flash_ops*",)),
    ]


@pytest.fixture
def parcels(items: list[Item], tmp_path: Path) -> Path:
    folder = tmp_path / "parcels"
    pack.clear(folder)
    pack.write(items, folder, "0.5.17", "sm90", LIMIT / 2**20)
    return folder


def test_no_parcel_is_larger_than_asked_for(parcels: Path) -> None:
    made = manifest.read(parcels / "parcel-01" / manifest.NAME)
    sizes = {
        path.name: sum(file.stat().st_size for file in path.iterdir())
        for path in sorted(parcels.iterdir())
    }
    assert len(sizes) == 3 and all(size <= LIMIT for size in sizes.values()), sizes
    assert made.parcels() == {
        name: sum(f.stat().st_size for f in (parcels / name).iterdir() if f.name != manifest.NAME)
        for name in sizes
    }
    assert max(made.parcels().values()) <= LIMIT - ROOM
    assert [len(file.pieces) for file in made.files] == [1, 3, 1]


def test_what_stays_behind_is_neither_in_the_wheel_nor_in_its_record(items: list[Item]) -> None:
    whole = items[2].path
    slim = whole.with_name("slim.whl")
    assert wheel.slimmed(whole, slim, ("*/flash_ops*",)) == 1
    with zipfile.ZipFile(slim) as archive:
        names = archive.namelist()
        record = archive.read("sgl-1.0.dist-info/RECORD").decode()
    assert "sgl/ops.so" in names and "sgl/flash_ops.so" not in names
    assert "sgl/ops.so" in record and "flash_ops" not in record


def test_kernels_without_the_file_that_is_to_stay_behind_are_refused(tmp_path: Path) -> None:
    other = made_wheel(tmp_path, "sglang_kernel", {"sgl_kernel/new.so": b"x"})
    with pytest.raises(GpuCheckError, match="has none of"):
        pack.write(
            [Item(other, "sglang", left_behind("sglang-kernel", "sm90"))],
            tmp_path, "0.5.17", "sm90", 1.0,
        )  # fmt: skip


@pytest.mark.slow
def test_all_parcels_at_once_make_a_folder_that_imports(parcels: Path, tmp_path: Path) -> None:
    into = tmp_path / "site"
    state = unpack.unpack(parcels, into, ROOT)
    assert state.whole and state.done == 3
    assert (into / "large/__init__.py").read_bytes() == noise(380_000, 2)
    assert not list((into / ".parcels").glob("*.whl*")), "pieces take the disk twice"
    code = (
        "import small\nfrom importlib.metadata import entry_points\n"
        "print(small.NAME, [e.value for e in entry_points(group='sglang.srt.plugins')])"
    )
    environment = unpack.environment(into, ROOT)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],  # -S: nothing of this environment's own packages
        capture_output=True, text=True, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split("\n")[0] == "small ['patches:register']", done.stderr


@pytest.mark.slow
def test_parcels_may_come_one_by_one_and_twice(parcels: Path, tmp_path: Path) -> None:
    into = tmp_path / "site"
    seen = []
    for name in ("parcel-03", "parcel-01", "parcel-01", "parcel-02"):
        state = unpack.unpack(parcels / name, into, ROOT)
        seen.append((state.done, state.left, state.parcels))
    assert seen == [
        (1, {"sglang": 2}, ("parcel-01", "parcel-02")),
        (2, {"sglang": 1}, ("parcel-02",)),
        (2, {"sglang": 1}, ("parcel-02",)),
        (3, {}, ()),
    ]
    assert (into / "large/__init__.py").read_bytes() == noise(380_000, 2)


@pytest.mark.slow
def test_a_damaged_piece_is_named_and_can_be_brought_again(parcels: Path, tmp_path: Path) -> None:
    into, piece = tmp_path / "site", parcels / "parcel-02" / "large-1.0-py3-none-any.whl.01"
    right = piece.read_bytes()
    piece.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    with pytest.raises(GpuCheckError, match=r"large-1\.0-py3-none-any\.whl\.01 is damaged"):
        unpack.unpack(parcels, into, ROOT)
    piece.write_bytes(right[:-5])
    with pytest.raises(GpuCheckError, match="bytes"):
        unpack.unpack(parcels, into, ROOT)
    piece.unlink()
    with pytest.raises(GpuCheckError, match="is missing: copy that parcel again"):
        unpack.unpack(parcels, into, ROOT)
    piece.write_bytes(right)
    assert unpack.unpack(parcels, into, ROOT).whole


def test_parcels_of_two_packings_are_not_mixed(
    items: list[Item], parcels: Path, tmp_path: Path
) -> None:
    other = tmp_path / "others"
    pack.clear(other)
    pack.write(items[:2], other, "0.5.17", "sm90", LIMIT / 2**20)
    into = tmp_path / "site"
    unpack.unpack(parcels / "parcel-01", into, ROOT)
    with pytest.raises(GpuCheckError, match="different packings"):
        unpack.unpack(other / "parcel-02", into, ROOT)


def test_folders_that_hold_other_things_are_left_alone(parcels: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(GpuCheckError, match="name an empty folder"):
        unpack.unpack(parcels, mine, ROOT)
    with pytest.raises(GpuCheckError, match=r"holds thesis\.txt"):
        pack.clear(mine)
    with pytest.raises(GpuCheckError, match="is no parcel"):
        unpack.unpack(mine, tmp_path / "site", ROOT)
    assert (mine / "thesis.txt").read_text() == "x"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 7, "files": []}'])
def test_a_manifest_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / manifest.NAME).write_text(text)
    with pytest.raises(GpuCheckError, match="pack again"):
        manifest.read(tmp_path / manifest.NAME)


@pytest.mark.slow
def test_a_real_wheel_comes_out_as_pip_installs_it(tmp_path: Path) -> None:
    bundled = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    parcels, into = tmp_path / "parcels", tmp_path / "site"
    pack.clear(parcels)
    pack.write([Item(bundled, "sglang", ("pip/_vendor/rich/*",))], parcels, "0.5.17", "sm90", 0.75)
    assert len(list(parcels.iterdir())) > 2
    assert unpack.unpack(parcels, into, ROOT).whole
    assert not (into / "pip/_vendor/rich").exists()
    (found,) = (d for d in metadata.distributions(path=[str(into)]) if d.name == "pip")
    assert bundled.name.split("-")[1] == found.version
    assert found.files and not [file for file in found.files if "rich" in str(file)]


def test_versions_are_the_wheels_own_before_the_locks() -> None:
    pins = exact_pins(
        "Requires-Dist: xgrammar==0.2.1\nRequires-Dist: sglang-kernel==0.4.5\n"
        "Requires-Dist: flashinfer_python[cu13]==0.6.15\nRequires-Dist: openai>=2\n"
        'Requires-Dist: torchcodec==0.11.1; sys_platform != "linux"\n'
    )
    assert pins == {"xgrammar": "0.2.1", "sglang-kernel": "0.4.5", "flashinfer-python": "0.6.15"}
    lock = lockfile.parse(layout.here().requirements.read_text())
    found = needs(lock, pins)
    assert found["xgrammar"] == "0.2.1" and found["sglang-kernel"] == "0.4.5"
    assert found["openai"] == lock["openai"] and "torch" not in found


def test_the_manifest_comes_back_as_it_was(parcels: Path) -> None:
    made = manifest.read(parcels / "parcel-02" / manifest.NAME)
    told = json.loads((parcels / "parcel-02" / manifest.NAME).read_text())
    assert told["files"][1]["sha256"] == made.files[1].sha256
    assert made.files[2].dropped == 1 and made.files[2].original > made.files[2].bytes
