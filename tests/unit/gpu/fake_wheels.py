"""Small wheels that pip takes."""

import base64
import hashlib
import random
import zipfile
from pathlib import Path


def wheel(folder: Path, project: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    """A pure-Python wheel with a RECORD that is right."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{project}-{version}.dist-info"
    every = {
        **files,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode()
        ),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, content in every.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    lines.append(f"{info}/RECORD,,\n")
    path = folder / f"{project}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in every.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(lines))
    return path


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress."""
    return random.Random(seed).randbytes(size)
