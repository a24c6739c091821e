"""Routers as specialised as large ones are reported to be."""

from dataclasses import replace

from tests.synthetic_routing import Recipe, distinct_ratio, families, token_ids


def specialised(recipe: Recipe, ratio: float = 0.78, seed: int = 0) -> Recipe:
    """The recipe with the highest `affinity` (two digits) at which `distinct_ratio` is not below.

    Looked for on a few layers of a few thousand short documents. Raises ValueError where even
    layers that ignore the text (affinity 0) are below.
    """
    few = replace(recipe, layers=min(recipe.layers, 6), document=4)
    tokens = 6000
    kinds = families(tokens, few, seed)

    def found(hundredths: int) -> float:
        return distinct_ratio(
            token_ids(tokens, replace(few, affinity=hundredths / 100), seed), kinds, seed=seed
        )

    low, high = 0, 200
    if found(low) < ratio:
        raise ValueError(f"no affinity gives a ratio of {ratio}; give one below 1")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if found(middle) >= ratio else (low, middle)
    return replace(recipe, affinity=low / 100)
