"""The wheel holds what an installed toolkit needs, and finds it there."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from toolkit import resources
from toolkit.setup.releases import PROVEN

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git would hold, so that no build/ is left in the tree."""
    import shutil

    source = tmp_path_factory.mktemp("source")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("toolkit", "patches", "launch", "profiles"):
        shutil.copytree(ROOT / name, source / name, ignore=skip)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet",
         "--no-index", "--wheel-dir", str(target), str(source)],
        check=True,
    )  # fmt: skip
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked as pip would, into a folder of its own."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def _same_files(ours: Path, theirs: Path, pattern: str) -> None:
    wanted = {str(p.relative_to(ours)) for p in ours.rglob(pattern) if "__pycache__" not in p.parts}
    found = {str(p.relative_to(theirs)) for p in theirs.rglob(pattern)}
    assert wanted and wanted <= found, sorted(wanted - found)


@pytest.mark.slow
def test_every_module_is_in_the_wheel(installed: Path) -> None:
    _same_files(ROOT / "toolkit", installed / "toolkit", "*.py")
    _same_files(ROOT / "patches", installed / "patches", "*.py")


@pytest.mark.slow
def test_model_prompts_recipes_profiles_and_lock_are_in_the_wheel(installed: Path) -> None:
    _same_files(ROOT / "toolkit/embedded", installed / "toolkit/embedded", "*.json*")
    _same_files(ROOT / "toolkit/embedded", installed / "toolkit/embedded", "*.safetensors")
    _same_files(ROOT / "launch", installed / "toolkit/_launch", "*.yaml")
    _same_files(ROOT / "launch", installed / "toolkit/_launch", "*.json")
    _same_files(ROOT / "profiles", installed / "toolkit/_profiles", "*.*")
    assert (installed / "toolkit/setup/cpu.lock").is_file()
    assert (installed / "toolkit/router/validate/declared.json").is_file()


@pytest.mark.slow
def test_what_only_trains_the_model_is_not_in_the_wheel(installed: Path) -> None:
    assert {path.name for path in (installed / "toolkit/embedded").iterdir()} == {
        "__init__.py",
        "draft",
        "model",
        "prompts.jsonl",
        "prompts.py",
    }


@pytest.mark.slow
def test_entry_points_and_extras(installed: Path) -> None:
    info = next(installed.glob("*.dist-info"))
    entries = (info / "entry_points.txt").read_text()
    assert "[sglang.srt.plugins]\ntoolkit = patches:register" in entries
    assert "toolkit = toolkit.cli.main:main" in entries
    metadata = (info / "METADATA").read_text()
    oldest, newest = PROVEN[0], PROVEN[-1]
    assert f'Requires-Dist: sglang<={newest},>={oldest}; extra == "cuda"' in metadata
    plain = [x for x in metadata.splitlines() if x.startswith("Requires-Dist") and ";" not in x]
    assert not [x for x in plain if "sglang" in x or "torch" in x]


@pytest.mark.slow
def test_an_installed_toolkit_finds_its_own_recipes(installed: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "from toolkit import resources; print(resources.recipes_dir(), resources.profiles_dir())"
    )
    # -I: neither the working folder nor PYTHONPATH may lead it back to the checkout.
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    folder = installed / "toolkit"
    assert done.stdout.split() == [str(folder / "_launch"), str(folder / "_profiles")]


def test_a_checkout_uses_its_own_folders() -> None:
    assert resources.recipes_dir() == ROOT / "launch"
    assert resources.profiles_dir() == ROOT / "profiles"


def test_a_damaged_installation_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "toolkit")
    with pytest.raises(FileNotFoundError, match="install the project again"):
        resources.recipes_dir()
