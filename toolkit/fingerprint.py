"""Tell models apart by what they compute with, cheaply enough for any size."""

import hashlib
import json
from pathlib import Path

from toolkit.bounded_files import read_json

SAMPLES, SAMPLE_BYTES = 64, 4096
_NOT_THE_MODEL = ("_name_or_path", "transformers_version")


def model_fingerprint(path: str | Path) -> str:
    """`sha256:` of a model folder's config and weights, or "" where there is no such folder.

    Of every weight file: its name, size, head (for safetensors the names, types and shapes of
    tensors) and 64 evenly spaced samples of 4 KiB. That reads at most 260 KiB a file, so two
    checkpoints of one architecture differ unless somebody changed a handful of weights only.

    Raises:
        OSError: a file cannot be read.
        ValueError: config.json is not JSON, or out of bounds.
    """
    folder = Path(path)
    config_path = folder / "config.json"
    if not config_path.is_file():
        return ""
    config = read_json(config_path)
    kept = {key: value for key, value in config.items() if key not in _NOT_THE_MODEL}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    weights = sorted(p for s in ("*.safetensors", "*.bin", "*.pt") for p in folder.glob(s))
    for file in weights:
        size = file.stat().st_size
        digest.update(f"\n{file.name} {size}\n".encode())
        step = max(SAMPLE_BYTES, size // SAMPLES)
        with file.open("rb") as stream:
            for start in range(0, size, step):
                stream.seek(start)
                digest.update(stream.read(SAMPLE_BYTES))
    return "sha256:" + digest.hexdigest()
