"""Whether a profile may be used with a model and a deployment."""

from typing import Any

from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.schema import Profile

_AGAIN = "measure it again with `toolkit profile`"


def problems(
    profile: Profile,
    *,
    fingerprint: str | None = None,
    layers: int | None = None,
    experts: int | None = None,
    top_k: int | None = None,
    decode_workers: int | None = None,
    sglang: str | None = None,
) -> list[str]:
    """One sentence for each thing that differs; what is not given is not compared.

    Args:
        fingerprint: `toolkit.fingerprint.model_fingerprint` of the model ("" is not compared).
        layers, experts, top_k: the model's MoE layers, experts a layer, experts a token.
        decode_workers: decode ranks that the router will see, those that share experts as one.
        sglang: version of the engine that will serve.
    """
    model = profile.model
    found = []
    numbers = (
        (layers, len(model.layers), "MoE layers"),
        (experts, model.experts, "experts a layer"),
        (top_k, model.top_k, "experts a token"),
    )
    for given, measured, what in numbers:
        if given is not None and given != measured:
            found.append(
                f"the profile was measured on {model.name} with {measured} {what}, this model has "
                f"{given}: {_AGAIN}"
            )
    if fingerprint and not found and fingerprint != model.fingerprint:
        # With other numbers it is another model anyway; one sentence says that once.
        found.append(
            f"the profile was measured on {model.name} ({_short(model.fingerprint)}), this model's "
            f"config or weights are others ({_short(fingerprint)}): {_AGAIN}"
        )
    if decode_workers is not None and decode_workers != profile.centroids.k:
        found.append(
            f"the profile has centroids for {profile.centroids.k} decode workers, the deployment "
            f"has {decode_workers}: `toolkit profile fit --k {decode_workers}`"
        )
    if sglang is not None and sglang != profile.setting.sglang:
        found.append(
            f"the profile was measured with SGLang {profile.setting.sglang}, this is {sglang}: "
            f"{_AGAIN}"
        )
    return found


def refuse(profile: Profile, **expected: Any) -> None:
    """Returns when nothing differs; takes what `problems` takes.

    Raises:
        ProfileError: a sentence a line, as `problems` gives them.
    """
    found = problems(profile, **expected)
    if found:
        raise ProfileError("\n".join(found))


def _short(fingerprint: str) -> str:
    return fingerprint[:19] + "..." if fingerprint else "no fingerprint"
