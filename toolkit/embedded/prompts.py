"""The project's own prompts and the path of the embedded model; imports nothing heavy."""

import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DOMAINS = ("code", "math", "medical", "legal", "general")
LANGUAGES = ("en", "zh", "ru", "fr")

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class OwnPrompt:
    """One user prompt; `id` names domain and language and is unique."""

    id: str
    domain: str
    language: str
    text: str


def model_path() -> Path:
    """Folder of the embedded model, ready for ``--model-path``."""
    return _HERE / "model"


def draft_path() -> Path:
    """Folder of its draft, an MTP layer, ready for ``--speculative-draft-model-path``."""
    return _HERE / "draft"


@cache
def _read() -> tuple[OwnPrompt, ...]:
    lines = (_HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(OwnPrompt(**json.loads(line)) for line in lines)


def load_prompts(domain: str | None = None, language: str | None = None) -> list[OwnPrompt]:
    """The prompts of a domain, of a language, of both or all of them, in file order."""
    if domain is not None and domain not in DOMAINS:
        raise ValueError(f"unknown domain {domain!r}; one of {', '.join(DOMAINS)}")
    if language is not None and language not in LANGUAGES:
        raise ValueError(f"unknown language {language!r}; one of {', '.join(LANGUAGES)}")
    return [p for p in _read() if domain in (None, p.domain) and language in (None, p.language)]


# Leads of the long prompts: (with all prompts of a cell, with every other one).
LEADS = {
    "en": ("Please work through the whole list below, one numbered answer each.",
           "I collected these questions over the week. Answer them briefly."),
    "zh": ("请依次完成下面列出的全部问题，每题单独编号作答。",
           "以下是我这一周整理的问题，请简要回答。"),
    "ru": ("Разбери, пожалуйста, весь список ниже и ответь на каждый вопрос отдельно.",
           "Эти вопросы накопились за неделю. Ответь на них коротко."),
    "fr": ("Traite toute la liste ci-dessous, avec une réponse numérotée par question.",
           "Voici les questions que j'ai notées cette semaine. Réponds brièvement."),
}  # fmt: skip


def compose_long(short: list[OwnPrompt]) -> list[OwnPrompt]:
    """Two long prompts for each cell but the general ones: all twelve passages, and six of them.

    This made the `-long-` rows of prompts.jsonl; a test checks that it still makes the same.
    """
    made = []
    for domain in DOMAINS[:-1]:
        for language in LANGUAGES:
            cell = [p.text for p in short if (p.domain, p.language) == (domain, language)]
            for number, passages in enumerate((cell, cell[1::2])):
                body = "\n".join(f"{i}. {text}" for i, text in enumerate(passages, 1))
                text = f"{LEADS[language][number]}\n{body}"
                made.append(
                    OwnPrompt(f"{domain}-{language}-long-{number + 1}", domain, language, text)
                )
    return made


def summary() -> Counter[tuple[str, str]]:
    """Number of prompts in each (domain, language)."""
    return Counter((p.domain, p.language) for p in _read())
