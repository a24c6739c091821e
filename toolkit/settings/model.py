"""Section `model`: which weights."""

from toolkit.settings.section import Count, Section, key


class Model(Section):
    """Which weights. `embedded` is the small model that ships with the toolkit."""

    path: str = key(
        "embedded",
        "`embedded` (the small model that ships with the toolkit) or a folder of weights",
    )
    served_name: str | None = key(None, "the model's name in the API")
    config: str | None = key(
        None, "folder whose config.json stands in for checks while weights are absent"
    )
    context_length: Count | None = key(None, "the longest prompt and answer together, in tokens")
    trust_remote_code: bool = key(False, "let the model's folder bring Python code of its own")
