"""What the check depends on besides the body: the model's size, the deployment's permissions."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TOP_LOGPROBS = 1024
"""Alternatives for each token; the work and the answer grow with it. OpenAI's limit is 20."""
MAX_TOKENS = 2**31 - 1
"""Counts and ids beyond are refused: they do not fit into SGLang's tensors."""
MAX_NAME = 4096
"""Characters of an identifier (session, salt, user, model)."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`vocabulary`: number of token ids, 0 while no worker has said it. `allow`: see ALLOWABLE.
    `release`: the supported release of SGLang that stands for all workers (`declared.oldest`),
    empty while none has said it."""

    vocabulary: int = 0
    allow: frozenset[str] = frozenset()
    release: str = ""

    @property
    def top_logprobs(self) -> int:
        return min(self.vocabulary or MAX_TOP_LOGPROBS, MAX_TOP_LOGPROBS)

    @property
    def ids(self) -> int:
        """Token ids are below this."""
        return self.vocabulary or MAX_TOKENS
