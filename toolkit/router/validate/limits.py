"""What the check depends on besides the body: the model's size, the deployment's permissions."""

from __future__ import annotations

from dataclasses import dataclass

ALLOWABLE: dict[str, str] = {
    "capture": "header x-toolkit-capture: the experts of a request go out on /toolkit/experts",
    "hidden_states": "return_hidden_states (needs SGLang's --return-hidden-states-mode)",
    "input_embeds": "input_embeds of /generate, in place of text or ids",
    "labels": "custom_labels: clients name series of the workers' metrics",
    "logit_processor": "custom_logit_processor: clients run pickled code inside the schedulers",
    "lora": "lora_path: clients choose among the adapters that the workers have",
    "media": "images, videos and audio, as data: URIs in the request itself (only `mode: plain`)",
    "media_urls": "also media by http(s) URL: the workers fetch what clients name",
    "priority": "priority: clients say who goes first",
    "routed_experts": "return_routed_experts and return_indexer_topk",
}
"""Names that `allow` of a router's configuration may hold, and what each lets through."""

MEDIA = frozenset({"media", "media_urls"})
NO_MEDIA = (
    "images, videos and audio are not proven right with prefill and decode apart (a stream that "
    "goes on at another worker would lose the positions of its image): use mode: plain, or leave "
    "media and media_urls out"
)
"""Why a deployment of prefill and decode workers cannot allow these."""
MAX_TOP_LOGPROBS = 1024
"""Alternatives for each token; the work and the answer grow with it. OpenAI's limit is 20."""
MAX_TOKENS = 2**31 - 1
"""Counts and ids beyond are refused: they do not fit into SGLang's tensors."""
MAX_NAME = 4096
"""Characters of an identifier (session, salt, user, model)."""


@dataclass(frozen=True, slots=True)
class Limits:
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
