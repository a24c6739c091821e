"""The installed packages against what the project was proven with."""

import importlib.util
import sysconfig
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from toolkit.doctor.finding import Finding, judged
from toolkit.setup import lockfile, verify
from toolkit.setup.releases import PROVEN

_SHOWN = 6


def examine() -> list[Finding]:
    """Everything that can be read without importing torch or SGLang."""
    lock = Path(__file__).parent.parent / "setup" / "cpu.lock"
    pins = lockfile.parse(lock.read_text())
    site = Path(sysconfig.get_path("purelib"))
    cuda = _version("sglang-kernel") is not None
    return [
        packages(len(pins), verify.differing(site, pins), cuda),
        sglang(_version("sglang")),
        torch(_version("torch")),
        kernel(_version("sglang-kernel")),
        plugin([entry.value for entry in entry_points(group="sglang.srt.plugins")]),
        _model(),
    ]


def packages(count: int, differing: list[str], cuda: bool) -> Finding:
    """`differing`: pinned packages with another version. A CUDA install has its own set."""
    if not differing:
        return Finding("packages", "ok", f"all {count} of cpu.lock as pinned")
    names = ", ".join(differing[:_SHOWN]) + (", ..." if len(differing) > _SHOWN else "")
    what = f"{len(differing)} of {count} are not as pinned: {names}"
    if cuda:
        return Finding("packages", "note", what, "as expected with the cuda extra")
    return Finding("packages", "note", what, "python3 -m toolkit.setup brings the pinned ones")


def sglang(found: str | None) -> Finding:
    """Patches hook SGLang's insides: another release is refused where a hook does not fit."""
    repair = "python3 -m toolkit.setup (CPU) or pip install .[cuda] brings one of them"
    if found is None:
        return Finding("SGLang", "missing", "not installed", repair)
    what = f"{found}, the patches are proven with {', '.join(PROVEN)}"
    return judged("SGLang", found in PROVEN, what, repair, "note")


def torch(found: str | None) -> Finding:
    repair = "python3 -m toolkit.setup (CPU) or pip install .[cuda] brings it"
    return judged("PyTorch", found is not None, found or "not installed", repair)


def kernel(found: str | None) -> Finding:
    if found is None:
        what = "sgl_kernel not installed"
        return Finding("GPU kernels", "note", what, "only device: cuda needs it: .[cuda]")
    return Finding("GPU kernels", "ok", f"sglang-kernel {found}")


def plugin(values: list[str]) -> Finding:
    """`values` of the entry points that SGLang loads."""
    good = "patches:register" in values
    what = "registered with SGLang" if good else "SGLang would not find the project's patches"
    return judged("plugin", good, what, "python3 -m toolkit.setup, or pip install --no-deps -e .")


def _model() -> Finding:
    from toolkit.embedded import model_path

    weights = list(model_path().glob("*.safetensors"))
    size = sum(file.stat().st_size for file in weights) / 1e6
    repair = "the checkout or wheel is damaged: get it again"
    return judged("embedded model", bool(weights), f"{size:.0f} MB of weights", repair)


def _version(name: str) -> str | None:
    """Also None when its metadata are there but its module is not (sgl_kernel, half removed)."""
    module = {"sglang-kernel": "sgl_kernel"}.get(name, name)
    try:
        return version(name) if importlib.util.find_spec(module) else None
    except PackageNotFoundError:
        return None
