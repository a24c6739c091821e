"""Section `speculative`: a draft proposes tokens, the model verifies several in one step."""

from typing import Literal

from toolkit.settings.section import Count, Section, key


class Speculative(Section):
    """Speculative decoding, the same on every worker: prefill workers write the draft's KV too."""

    algorithm: Literal["EAGLE", "EAGLE3", "NEXTN"] = key(
        "EAGLE",
        "SGLang's `--speculative-algorithm`; NEXTN is another name of EAGLE, for MTP layers",
    )
    draft: str | None = key(
        None,
        "folder of the draft's weights, or `embedded` (the draft of the model that ships with the "
        "toolkit); unset: in the model's own folder, as those of DeepSeek and GLM are",
    )
    steps: Count = key(3, "tokens that the draft proposes in a row")
    topk: Count = key(1, "candidates of each of them: 1 is a chain, more is a tree (`mode: plain`)")
    tokens: Count | None = key(
        None, "tokens that are verified in a step, the last one included; default: `steps` + 1"
    )
