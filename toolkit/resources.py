"""Where the files that ship with the project lie: in a checkout and in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent


def recipes_dir() -> Path:
    """The folder of deployment files: `launch/` in a checkout, `toolkit/_launch` in a wheel."""
    return _shipped("launch")


def profiles_dir() -> Path:
    """The folder of profiles: `profiles/` in a checkout, `toolkit/_profiles` in a wheel."""
    return _shipped("profiles")


def _shipped(name: str) -> Path:
    # pyproject.toml marks a checkout: a site-packages folder has none, and may
    # well hold somebody else's top-level `launch`.
    if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / name).is_dir():
        return _CHECKOUT / name
    installed = _PACKAGE / f"_{name}"
    if installed.is_dir():
        return installed
    raise FileNotFoundError(
        f"the project's {name}/ folder is neither in {_CHECKOUT} nor in {installed}; "
        "the installation is damaged: install the project again"
    )
