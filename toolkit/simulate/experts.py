"""Which experts a batch of particular requests activates, from a measured profile."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np

    from toolkit.placement.base import Placement
    from toolkit.signatures.space import SignatureSpace

DIGITS = 6
"""Of an expected number of experts: expm1's last bit is the CPU's, and a simulation orders events
by times that come from it."""
SURE = 1 - 1e-6
"""An expert that every sampled token used is still not certain."""


class SimulatedExperts:
    """The requests of a profile, as patterns that simulated ones follow.

    A row's share p[l, e] of decode tokens that used expert e at layer l is the chance that its next
    token does. Tokens of a batch are taken as independent given their requests, so the expected
    number of distinct experts of a batch B is

        sum over l, e of 1 - prod over r in B of (1 - p_r[l, e]),

    in which requests with the same experts share them: locality has its effect on the step.
    `absent` [N, L * E] float32: log(1 - p); after `placed` of each slot [N, L * P], those of a
    layer in the order of its `gpus` GPUs. `signatures` [N, D]: what ELDR sees after the prefill,
    None without a space. Source: ELDR (arXiv 2607.00466), section 2.

    Centroids are fitted to the rows `calibration`, requests follow those of `traffic`. Where a
    policy's centroids come from the very requests that it then routes, it looks better than it
    would be: so of a profile the rows that its own fit did not see are traffic.
    """

    def __init__(
        self,
        decode_counts: np.ndarray,
        output_tokens: np.ndarray,
        prefill_counts: np.ndarray | None = None,
        space: SignatureSpace | None = None,
        labels: Sequence[Sequence[str]] = (),
        held_out: Sequence[bool] | np.ndarray = (),
    ) -> None:
        """Counts [N, L, E] and tokens [N] as in a profile; `labels` of each row; whether it is
        traffic only (`held_out` [N]; where it says the same of all rows, each is both calibration
        and traffic). ValueError: shapes that do not belong together."""
        import numpy as np

        rows, self.layers, self.experts = decode_counts.shape
        held = np.asarray(held_out, dtype=bool) if len(held_out) else np.zeros(rows, dtype=bool)
        if len({rows, len(output_tokens), len(held), len(labels) or rows}) > 1:
            raise ValueError(
                f"{rows} rows of counts, {len(output_tokens)} of tokens, {len(labels)} of labels, "
                f"{len(held)} of held out ones"
            )
        seen, unseen = np.flatnonzero(~held).tolist(), np.flatnonzero(held).tolist()
        self.calibration: tuple[int, ...] = tuple(seen or unseen)
        self.traffic: tuple[int, ...] = tuple(unseen or seen)
        tokens = np.maximum(output_tokens, 1).reshape(-1, 1)
        chance = np.minimum(decode_counts.reshape(rows, -1) / tokens, SURE)
        self.absent: np.ndarray = np.log1p(-chance).astype(np.float32)
        self.gpus = 1
        self.tokens = 1
        """Of each request, that a step looks at (`verified`)."""
        self.space = space
        self.placement: Placement | None = None
        self.logical: np.ndarray = self.absent
        """[N, L * E]: `absent` as it was before `placed`."""
        self.pairs: np.ndarray | None = None
        """[N, L, G] float32 after `placed`: experts of a row's token that each GPU serves."""
        self.aging: Aging | None = None
        self.rows: tuple[int, ...] = tuple(range(self.layers))
        """Which hidden layers of the model those with experts are."""
        self.signatures: np.ndarray | None = None
        if space is not None and prefill_counts is not None:
            self.signatures = space.signatures(prefill_counts)
        self.labels = tuple(tuple(each) for each in labels)

    @classmethod
    def of_profile(cls, folder: str | Path) -> SimulatedExperts:
        """Those of a profile: its held-out requests are traffic, the others calibration.
        ProfileError: it is none, or damaged."""
        from toolkit.profile_folder import store
        from toolkit.signatures.space import SignatureSpace

        profile, arrays = store.read(folder)
        labels = [
            [each.domain, each.language, f"{each.domain}/{each.language}"]
            for each in profile.requests
        ]
        space = SignatureSpace(arrays["idf"], profile.rho.mask)
        counts = (arrays["decode_counts"], arrays["output_tokens"], arrays["prefill_counts"])
        found = cls(*counts, space=space, labels=labels, held_out=arrays["held_out"])
        found.rows = tuple(profile.model.layers)
        return found

    def placed(self, placement: Placement) -> SimulatedExperts:
        """The same requests, where the experts of those that take a step together lie on several
        GPUs. Of an expert's replicas each gets an equal part of its tokens, as with SGLang's random
        dispatch. ValueError: they lie somewhere already, or the placement is of another model."""
        import numpy as np

        if self.absent.shape[1] != self.layers * self.experts or self.gpus > 1:
            raise ValueError("these experts have a placement already")
        if (placement.layers, placement.experts) != (self.layers, self.experts):
            raise ValueError(
                f"the placement has {placement.layers} layers of {placement.experts} experts, the "
                f"profile {self.layers} of {self.experts}: it was made for another model"
            )
        chance = -np.expm1(self.absent).reshape(-1, self.layers, self.experts)
        slots = placement.physical_to_logical[None]
        here = np.take_along_axis(chance / placement.replicas(), slots, axis=2)
        found = copy.copy(self)
        found.pairs = here.reshape(*here.shape[:2], placement.gpus, -1).sum(axis=3)
        found.absent = np.log1p(-here.reshape(len(self), -1)).astype(np.float32)
        found.gpus, found.placement = placement.gpus, placement
        return found

    def aged(self, old: SimulatedExperts, fresh: float, step_s: float) -> SimulatedExperts:
        """The same, in a share `fresh` of the time; else they lie as `old` ones do. `step_s`: what
        moving them takes of each step. ValueError: other sizes, no share."""
        one, two = self.absent.shape, old.absent.shape
        if one != two or self.gpus != old.gpus or not (0 <= fresh <= 1 and step_s >= 0):
            raise ValueError(f"{fresh:g} of {one} and the rest of {two}, {step_s:g} s a step")
        found = copy.copy(self)
        found.aging = Aging(old, fresh, step_s)
        return found

    def verified(self, tokens: int) -> SimulatedExperts:
        """The same where a step looks at so many tokens of each request (speculative decoding),
        which are independent like those of different steps."""
        found = copy.copy(self)
        found.absent, found.tokens = self.absent * tokens, tokens
        if self.aging is not None:
            found.aging = self.aging._replace(old=self.aging.old.verified(tokens))
        return found

    def __len__(self) -> int:
        return len(self.absent)

    def centroids(self, k: int, seed: int) -> np.ndarray:
        """One for each of k decode workers [k, D], of the rows `calibration`, as `toolkit profile
        fit` makes them. ValueError: there are no signatures, or fewer than k."""
        from toolkit.signatures.clusters import balanced_kmeans

        if self.signatures is None:
            raise ValueError("these experts have no signatures: they were made without a space")
        return balanced_kmeans(self.signatures[list(self.calibration)], k, seed).centroids


class Aging(NamedTuple):
    """Traffic changes, and experts lie as earlier traffic had it (`SimulatedExperts.aged`)."""

    old: SimulatedExperts
    fresh: float
    step_s: float


class Mixture:
    """The experts of the requests that take a step together, kept as they come and go."""

    def __init__(self, experts: SimulatedExperts) -> None:
        import numpy as np

        self._absent = experts.absent
        self._shape = (experts.layers, experts.gpus, -1)
        self.total: np.ndarray = np.zeros(experts.absent.shape[1])
        self._count = 0

    def add(self, row: int) -> None:
        self.total += self._absent[row]
        self._count += 1

    def remove(self, row: int) -> None:
        self._count -= 1
        if self._count:
            self.total -= self._absent[row]
        else:
            self.total[:] = 0.0  # rounding does not pile up

    def distinct(self) -> float:
        """Expected distinct experts of one step, summed over layers; replicas count apart."""
        import numpy as np

        return round(float(-np.expm1(self.total).sum()), DIGITS)

    def busiest(self) -> float:
        """Of each layer those on the GPU that has to load most, for which the others wait. Summed
        over layers; a little low, as the GPU is the busiest in expectation."""
        import numpy as np

        on_gpus = -np.expm1(self.total).reshape(self._shape).sum(axis=2)
        return round(float(on_gpus.max(axis=1).sum()), DIGITS)
