"""Token ids with the skew and the affinity of a real router; for tests and benchmarks.

What a token's experts are at a layer follows from logits that add up:
- popularity: Zipf, with its own exponent and its own order of experts at every layer;
- family (language): documents have one; at every layer each expert is at home in one family;
- topic: documents have one inside their family, and 70 % of their tokens keep to it;
- class (kind of word): drawn for every token; families and topics share the classes;
- chain: every expert prefers a few experts of the next layer, whatever the rest says.
With `groups`, only experts of the `top_groups` groups with the best two experts each are in the
draw, as in DeepSeek-V3's node-limited routing (`noaux_tc`; group g holds neighbouring experts).
k distinct experts are then drawn without replacement with those weights (exponential races); a
token's come in ascending order. The same on every CPU, races aside that float64 cannot tell apart.
`affinity` scales all but popularity: 0 gives layers that are independent of each other.

The strengths are fitted to the embedded model, the one trained router at hand (6 layers x 48
experts, top 4, 22,311 tokens of its own prompts). What the best 2, 6, 12, 25 and 50 % of the next
layer's experts get of an expert's traffic: embedded .13 .34 .54 .74 .91; here at that size, 4
families and affinity 1 .16 .39 .59 .78 .93. Mutual information of neighbouring layers' experts:
.66 and .62 nats. At 58 x 256, top 8, affinity 0.8 comes closest: .23 .46 .61 .77 .92, .61 nats.
That is a router more specialised than ELDR reports of large ones (`distinct_ratio`): where that
matters, `specialised` gives the recipe whose batches are as alike as asked.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int16]
Floats = NDArray[np.float32]

FAMILY, TOPIC, CLASS, CHAIN = 6.5, 3.0, 5.0, 1.0
"""Strengths (logits) at affinity 1."""
CHUNK = 4096
"""Tokens whose races are run in one go."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a synthetic router and its text look like. Raises ValueError for impossible sizes."""

    layers: int = 58
    experts: int = 256
    top_k: int = 8
    affinity: float = 0.8
    zipf: float = 0.6
    """Largest Zipf exponent of a layer; layers draw theirs from half of it up to it."""
    families: int = 8
    topics: int = 6
    """Topics of each family."""
    classes: int = 6
    document: int = 64
    """Tokens of one document (request)."""
    groups: int = 0
    """Groups that the experts form; 0: routing is not limited to some of them."""
    top_groups: int = 0
    """Groups that a token's experts may come from."""

    def __post_init__(self) -> None:
        if self.layers < 1 or self.experts < 2:
            raise ValueError(
                f"{self.layers} layers of {self.experts} experts route nothing; give at least one "
                "layer and two experts"
            )
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(
                f"top_k {self.top_k} of {self.experts} experts is impossible; give 1 to "
                f"{self.experts}"
            )
        if self.affinity < 0 or self.zipf < 0:
            raise ValueError(f"affinity {self.affinity} and zipf {self.zipf} must not be negative")
        if min(self.families, self.topics, self.classes, self.document) < 1:
            raise ValueError("families, topics, classes and document must be at least 1")
        if self.groups:
            size = self.experts // self.groups
            fits = self.experts % self.groups == 0 and size >= 2
            if not fits or not self.top_k <= self.top_groups * size <= self.experts:
                raise ValueError(
                    f"top {self.top_groups} of {self.groups} groups is impossible with "
                    f"{self.experts} experts, top {self.top_k}; groups of two or more experts "
                    "must divide them, and the chosen ones hold the top k"
                )


def token_ids(tokens: int, recipe: Recipe, seed: int) -> Ids:
    """Logical expert ids [tokens, layers, top_k] of one router and text, both drawn by the seed.

    Raises ValueError for fewer than one token.
    """
    if tokens < 1:
        raise ValueError(f"{tokens} tokens: give at least one")
    rng = np.random.default_rng(seed)
    experts, k = recipe.experts, recipe.top_k
    topic, kind = _text(tokens, recipe, rng)
    topics = recipe.families * recipe.topics
    ids = np.empty((tokens, recipe.layers, k), np.int16)
    chain = np.zeros((experts, experts), np.float32)
    for layer in range(recipe.layers):
        home = rng.permutation(experts) % recipe.families
        by_topic = np.where(
            home == np.arange(topics)[:, None] % recipe.families,
            FAMILY * rng.uniform(0.3, 1, experts),
            0,
        ) + TOPIC * _taste(topics, experts, experts // 5, rng)
        by_kind = CLASS * _taste(recipe.classes, experts, experts * 3 // 10, rng)
        exponent = rng.uniform(recipe.zipf / 2, recipe.zipf)
        rank = np.log(rng.permutation(experts) + 1).astype(np.float32)
        before, chain = chain, _taste(experts, experts, max(2, experts // 32), rng)
        for start in range(0, tokens, CHUNK):
            rows = slice(start, start + CHUNK)
            logits = (by_topic.astype(np.float32) * recipe.affinity)[topic[rows]]
            logits += (by_kind * recipe.affinity)[kind[rows]]
            logits -= np.float32(exponent) * rank
            if layer:
                used = np.zeros(logits.shape, np.float32)
                np.put_along_axis(used, ids[rows, layer - 1].astype(np.intp), 1, axis=1)
                logits += CHAIN * recipe.affinity * (used @ before)
            race = rng.standard_exponential(logits.shape, np.float32)
            # In float64: the last bit of exp is the CPU's, and in float32 it would decide races.
            finish = race * np.exp(-logits.astype(np.float64))
            if recipe.groups:
                _limit(finish, recipe)
            # Sorted: which of the k come first in a partition is the CPU's, too.
            best = np.argpartition(finish, k - 1, axis=1)[:, :k]
            ids[rows, layer] = np.sort(best, axis=1)
    return ids


def families(tokens: int, recipe: Recipe, seed: int) -> NDArray[np.intp]:
    """[tokens]: the family of each token's document, in what `token_ids` draws by that seed."""
    documents = -(-tokens // recipe.document)
    own = _own_topics(documents, recipe, np.random.default_rng(seed)) % recipe.families
    return np.repeat(own, recipe.document)[:tokens]


def distinct_ratio(ids: Ids, family: NDArray[np.integer], batch: int = 32, seed: int = 0) -> float:
    """Distinct experts that a batch of one family activates / those of a batch of any families.

    Tokens [T, L, k] with families [T]; batches are drawn by the seed, 32 of either kind for each
    family that has enough tokens. ELDR (arXiv 2607.00466) reports 0.78 of a step's experts.
    Raises ValueError where no family has `batch` tokens.
    """
    rng = np.random.default_rng(seed)
    counts = np.bincount(family)
    known = np.flatnonzero(counts >= batch)
    if not len(known):
        raise ValueError(f"no family has {batch} tokens; give more tokens")
    alike = mixed = 0
    for each in known:
        mine = np.flatnonzero(family == each)
        for _ in range(32):
            alike += _distinct(ids[rng.choice(mine, batch, replace=False)])
            mixed += _distinct(ids[rng.choice(len(ids), batch, replace=False)])
    return alike / mixed


def split(ids: Ids, held_out: float = 0.5) -> tuple[Ids, Ids]:
    """The first tokens to fit on, the last `held_out` share to judge on (at least one each)."""
    if not 0 < held_out < 1 or len(ids) < 2:
        raise ValueError(
            f"cannot hold out {held_out} of {len(ids)} tokens; give a share between 0 and 1 and at "
            "least two tokens"
        )
    cut = min(max(round(len(ids) * (1 - held_out)), 1), len(ids) - 1)
    return ids[:cut], ids[cut:]


def _text(
    tokens: int, recipe: Recipe, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Topic and class of every token; topic t belongs to family t % families."""
    documents = -(-tokens // recipe.document)
    own = _own_topics(documents, recipe, rng)
    own = np.repeat(own, recipe.document)[:tokens]
    other = rng.integers(0, recipe.topics, tokens) * recipe.families + own % recipe.families
    topic = np.where(rng.random(tokens) < 0.7, own, other)
    share = 1 / np.arange(1, recipe.classes + 1)
    kind = rng.choice(recipe.classes, tokens, p=share / share.sum())
    return topic, kind


def _own_topics(documents: int, recipe: Recipe, rng: np.random.Generator) -> NDArray[np.integer]:
    return rng.integers(0, recipe.families * recipe.topics, documents)


def _limit(finish: NDArray[np.float64], recipe: Recipe) -> None:
    """Take experts outside a token's best groups out of the race [T, E].

    A group's score is the sum of its best two experts' scores; a race's time is exp(-score), so
    here it is the product of the shortest two.
    """
    groups = finish.reshape(len(finish), recipe.groups, -1)
    score = np.partition(groups, 1, axis=2)[:, :, :2].prod(axis=2)
    worse = np.argsort(score, axis=1, kind="stable")[:, recipe.top_groups :]
    np.put_along_axis(groups, worse[:, :, None], np.inf, axis=1)


def _distinct(ids: Ids) -> int:
    """Distinct experts of one batch [B, L, k], summed over layers."""
    return sum(len(np.unique(layer)) for layer in ids.transpose(1, 0, 2))


def _taste(rows: int, experts: int, preferred: int, rng: np.random.Generator) -> Floats:
    """[rows, experts]: 0, and in `preferred` random places of each row a strength of 0.3 to 1."""
    taste = np.zeros((rows, experts), np.float32)
    places = np.argsort(rng.random((rows, experts)), axis=1, kind="stable")[:, : max(1, preferred)]
    # Multiples of 2^-12: sums of them are exact, so products of matrices are, on every CPU.
    strength = np.rint(rng.uniform(0.3, 1.0, places.shape) * 4096) / 4096
    np.put_along_axis(taste, places, strength.astype(np.float32), 1)
    return taste
