"""Calibration prompts: the project's own, or a JSONL file."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from toolkit.bounded_files import Unreadable, lines_of, parse_json
from toolkit.profile_folder.errors import ProfileError

HELD_OUT_PERCENT = 25


@dataclass(frozen=True, slots=True)
class CalibrationPrompt:
    """One request. `text` is sent as a chat, `input_ids` as they are; labels may be empty."""

    id: str
    text: str
    input_ids: tuple[int, ...] = ()
    domain: str = ""
    language: str = ""

    @property
    def cell(self) -> str:
        """The finest label: domain and language."""
        return f"{self.domain}/{self.language}"

    @property
    def held_out(self) -> bool:
        """True for about a quarter of prompts, by content, so that a rerun splits alike."""
        content = self.text or repr(self.input_ids)
        digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
        return digest[0] * 100 < HELD_OUT_PERCENT * 256


def own_prompts() -> list[CalibrationPrompt]:
    """The project's own short prompts; the long ones repeat them."""
    from toolkit.embedded import load_prompts

    return [
        CalibrationPrompt(p.id, p.text, domain=p.domain, language=p.language)
        for p in load_prompts()
        if "-long-" not in p.id
    ]


def read_prompts(path: Path, limit: int | None = None) -> list[CalibrationPrompt]:
    """Prompts of a JSONL file: `text` (or `prompt`) or `input_ids`, and maybe `id`, `domain`,
    `language`.

    Raises:
        ProfileError: names the line and what it lacks.
    """
    prompts: list[CalibrationPrompt] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines_of(lines), 1):
                if limit is not None and len(prompts) >= limit:
                    break
                if line.strip():
                    prompts.append(_prompt(f"{path}:{number}", line))
    except (OSError, UnicodeDecodeError, Unreadable) as error:
        raise ProfileError(f"cannot read prompts from {path}: {error}") from error
    return prompts


def _prompt(where: str, line: str) -> CalibrationPrompt:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ProfileError(f"{where}: not JSON ({error})") from error
    text = row.get("text") or row.get("prompt") if isinstance(row, dict) else None
    ids = row.get("input_ids") if isinstance(row, dict) else None
    if isinstance(ids, list) and ids and all(isinstance(i, int) and i >= 0 for i in ids):
        text = ""
    elif not isinstance(text, str) or not text.strip():
        raise ProfileError(f'{where}: needs "text" (a string) or "input_ids" (a list of ids)')
    else:
        ids = []
    name = str(row.get("id") or where.rsplit("/", 1)[-1])
    labels = (str(row.get(key) or "") for key in ("domain", "language"))
    return CalibrationPrompt(name, text, tuple(ids), *labels)


def check(prompts: list[CalibrationPrompt], least: int = 8) -> None:
    """Refuse sets that no statistics can be made of.

    Raises:
        ProfileError: too few prompts, or all alike.
    """
    if len(prompts) < least:
        raise ProfileError(f"{len(prompts)} calibration prompts: at least {least} are needed")
    if len({(p.text, p.input_ids) for p in prompts}) == 1:
        raise ProfileError("all calibration prompts are the same: use prompts like your traffic")
    fitted = sum(not p.held_out for p in prompts)
    if fitted in (0, len(prompts)):
        raise ProfileError("the set is too small to keep a quarter aside for judging: add prompts")
