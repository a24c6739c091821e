"""Which rows the embedded model may learn from, and how they are split and mixed.

Only rows whose licence lets us ship a model under the project's own terms are kept. Share-alike
rows (CC-BY-SA) are left out, and so is every source whose licence we could not confirm. The cells
that the data lacks (code outside English, law in Russian and French, medicine in Chinese and
Russian) come from the project's own `texts/DOMAIN_LANGUAGE.jsonl`.
"""

import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

# source -> licence, as read in the licence texts that come with the data (LICENSES/), except
# where a comment says otherwise.
ALLOWED: dict[str, str] = {
    "AbhilashaRavichander/PrivacyQA_EMNLP": "MIT",
    "CSHaitao/LexEval": "MIT",
    "LAION-AI/Open-Assistant": "Apache-2.0",
    "OASST1 via bofenghuang/vigogne": "Apache-2.0",
    "OpenLMLab/GAOKAO-Bench": "Apache-2.0",
    "TellinaTool/nl2bash": "MIT",
    "VikhrModels/ru_llm_arena:arena-hard-ru": "Apache-2.0",
    "VikhrModels/ru_llm_arena:ru-arena": "Apache-2.0",
    "abachaa/MedQuAD": "CC-BY-4.0",
    "amazon-science/mxeval:mbpp": "CC-BY-4.0",
    "amazon-science/mxeval:mbxp": "CC-BY-4.0",
    "google-research/url-nlp:mgsm": "CC-BY-4.0",
    "hendrycks/test:mmlu": "MIT",
    "lm-sys/FastChat": "Apache-2.0",
    "lm-sys/arena-hard-auto": "Apache-2.0",
    "open-compass/LawBench": "Apache-2.0",
    "openai/grade-school-math": "MIT",
    "openai/human-eval": "MIT",
    "pubmedqa/pubmedqa": "MIT",
    # No text in LICENSES/; its data card says Apache-2.0 and the data README "permissive".
    "qanastek/FrenchMedMCQA": "Apache-2.0",
    # AGIEval licenses each subset apart; these three are MIT or Apache-2.0.
    "ruixiangcui/AGIEval:aqua-rat": "Apache-2.0",
    "ruixiangcui/AGIEval:gaokao": "MIT",
    "ruixiangcui/AGIEval:sat-math": "MIT",
    "yizhongw/self-instruct": "Apache-2.0",
}

# source -> why it is left out.
EXCLUDED: dict[str, str] = {
    "MCEVAL/McEval": "CC-BY-SA-4.0 (share-alike)",
    "google-deepmind/xquad": "CC-BY-SA-4.0 (share-alike)",
    "google-research-datasets/natural-questions": "NQ-open rows are CC-BY-SA-3.0 (share-alike)",
    "mhardalov/exams-qa": "CC-BY-SA-4.0 (share-alike)",
    "vladislavneon/RuBQ": "CC-BY-SA-4.0 (share-alike)",
    "HazyResearch/legalbench": "no licence text at hand; its tasks mix licences, some NC or SA",
    "Tatoeba via facebookresearch/LASER": "CC-BY-2.0-FR asks for credit per author; none at hand",
}


@dataclass(frozen=True)
class Row:
    """One training text and the cell (domain, language) that it belongs to."""

    domain: str
    language: str
    source: str
    text: str

    @property
    def cell(self) -> str:
        """The key by which batches are mixed, such as ``math/zh``."""
        return f"{self.domain}/{self.language}"


def load_rows(path: Path) -> list[Row]:
    """Read the allowed rows; a source that is in neither list is an error, not a silent skip."""
    opener = gzip.open if path.suffix == ".gz" else open
    rows = []
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            source = record["source"]
            if source in ALLOWED:
                rows.append(Row(record["domain"], record["language"], source, record["text"]))
            elif source not in EXCLUDED:
                raise ValueError(f"licence of {source!r} was never checked: list it in corpus.py")
    return rows


def load_own_texts() -> list[Row]:
    """The project's own training texts, one cell a file."""
    rows = []
    for path in sorted(Path(__file__).with_name("texts").glob("*.jsonl")):
        domain, language = path.stem.split("_")
        for line in path.read_text("utf-8").splitlines():
            rows.append(Row(domain, language, "own", json.loads(line)["text"]))
    return rows


def is_held_out(text: str) -> bool:
    """True for about 4 % of texts, by their hash, so that the split outlives any reordering."""
    return hashlib.sha256(text.encode()).digest()[0] < 10
