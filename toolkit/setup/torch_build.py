"""Gets the CPU build of PyTorch, whose plain PyPI wheel brings gigabytes of CUDA packages."""

from __future__ import annotations

from typing import List

from toolkit.setup import installer, say, verify
from toolkit.setup.layout import SetupLayout

UV = "uv==0.13.8"


def has_no_cpu_build(pip_output: str) -> bool:
    """Whether pip, asked for the +cpu build, reached an index and found only others there.

    An index that was not reached gives the same closing words after `from versions: none`. A pip
    that has constraints says that they conflict instead, and names no versions at all.
    """
    if "ResolutionImpossible" in pip_output:
        return True
    return (
        "No matching distribution found for torch" in pip_output
        and "from versions: none" not in pip_output
    )


def install(layout: SetupLayout, version: str) -> None:
    """Installs `torch==VERSION+cpu`, from what pip is configured with, else by uv.

    A torch of that version which is there already is taken as it is, whatever its build: that is
    the way out for whoever reaches neither. A local version in an exact pin matches nothing else,
    so pip downloads no CUDA build to find out. uv (`--torch-backend cpu`) knows where PyTorch keeps
    its CPU builds.

    Raises:
        SetupError: neither had it, and why.
    """
    pin = f"torch=={version}+cpu"
    if not verify.damaged(layout.site_packages, {"torch": version}) and not verify.differing(
        layout.site_packages, {"torch": version}
    ):
        return
    with say.step(f"PyTorch {version}, CPU build"):
        status, output = installer.pip(layout, ["--no-deps", pin])
        if status == 0:
            return
        if not has_no_cpu_build(output):
            raise say.SetupError(f"{installer.explain(output)}\n(The whole story: {layout.log})")
        say.line("  pip's index has no CPU build: asking uv, which knows where they are kept")
        installer.install(layout, ["--no-deps", UV])
        status, output = installer.logged(layout, uv_command(layout, version))
        if status != 0:
            raise say.SetupError(
                f"uv did not get {pin}. {installer.explain(output).replace('pip said', 'uv said')}"
                f"\nPyPI's own build (3 GB more) does as well: `{layout.python} -m pip install "
                f"torch=={version}`, then the same command again.\n(The whole story: {layout.log})"
            )


def uv_command(layout: SetupLayout, version: str) -> List[str]:
    """The command that installs the CPU build where pip's own index has none."""
    return [
        str(layout.venv / "bin" / "uv"), "pip", "install", "--python", str(layout.python),
        "--no-deps", "--torch-backend", "cpu", f"torch=={version}",
    ]  # fmt: skip
