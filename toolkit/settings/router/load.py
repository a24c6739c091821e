"""Read the router's own file."""

from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from toolkit.bounded_files import Unreadable, read_bytes
from toolkit.settings.renamed import new_name
from toolkit.settings.router.config import ConfigError, RouterConfig


def load_config(path: str | Path) -> RouterConfig:
    """Read and check a configuration file; ConfigError names the file and each wrong field."""
    try:
        return RouterConfig.model_validate_json(read_bytes(Path(path)))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except Unreadable as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except ValidationError as error:
        lines = [_explain(item) for item in error.errors()]
        raise ConfigError(f"{path} is not a router configuration:\n" + "\n".join(lines)) from error


def _explain(item: ErrorDetails) -> str:
    at = item["loc"]
    what = item["msg"]
    if item["type"] == "extra_forbidden" and (new := new_name(("router", *at))):
        what = f"it is now {new!r}"
    return f"  {'.'.join(map(str, at)) or '(file)'}: {what}"
