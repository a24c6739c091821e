"""What the operator can let clients do beyond plain requests: names of `allow`."""

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
