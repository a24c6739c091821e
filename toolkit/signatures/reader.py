"""From a `prefill_done` event to the vector that ELDR compares with its centroids."""

import logging
from dataclasses import dataclass
from typing import Any

from toolkit.contract.events import Hello
from toolkit.contract.variables import LAYERS_VARIABLE
from toolkit.profile_folder.schema import Profile
from toolkit.signatures.calibration import Floats
from toolkit.signatures.space import SignatureSpace
from toolkit.signatures.wire import unpack

log = logging.getLogger("toolkit.router")

NONE, INCOMPLETE, MALFORMED = "no signature", "incomplete signature", "malformed signature"
OTHER_LAYERS, OTHER_MODEL = "other layers", "other model"
LARGEST_NUMBER = 2**31
"""No prompt has so many tokens: a greater number would only end as infinity further on."""


@dataclass(frozen=True, eq=False, slots=True)
class SignatureSample:
    """A request's `vector` [D] (unit length), its `counts` [D] float32 and its prompt's tokens."""

    vector: Floats
    counts: Floats
    tokens: int


class SignatureReader:
    """Reads the signatures of workers that record what the profile was measured with.

    A worker is judged by its `hello`: another model, other layers or another number of experts
    make its signatures mean something else, so they are not used and the reason says which.
    """

    def __init__(self, profile: Profile, space: SignatureSpace) -> None:
        self.space = space
        self.layers = [profile.model.layers[index] for index in sorted(profile.rho.mask)]
        self._model = profile.model
        self._wrong: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        """By worker: what is wrong with it and how to mend it."""

    def greet(self, name: str, role: str, hello: Hello) -> None:
        """Judge a worker by its hello; what is wrong with it is logged when it has changed."""
        reason, problem = self._judge(role, hello)
        if problem and problem != self.problems.get(name):
            log.error("worker %s and the profile do not fit: %s", name, problem)
        for kept, value in ((self._wrong, reason), (self.problems, problem)):
            kept.pop(name, None)
            if value:
                kept[name] = value

    def read(self, name: str, signature: Any) -> SignatureSample | str:
        """The sample of a `prefill_done` with this signature, or in a few words why there is
        none."""
        wrong = self._wrong.get(name)
        if wrong is not None:
            return wrong
        if signature is None:
            return NONE
        try:
            counts, wire = unpack(signature)
        except (ValueError, OverflowError):
            return MALFORMED
        if not (0 < wire.scale < LARGEST_NUMBER and 0 < wire.tokens < LARGEST_NUMBER):
            return MALFORMED
        if not wire.complete:
            return INCOMPLETE
        try:
            return SignatureSample(self.space.of_kept(counts), counts, wire.tokens)
        except ValueError:
            return OTHER_LAYERS

    def _judge(self, role: str, hello: Hello) -> tuple[str, str]:
        """The reason for the counters and the problem in words; both empty when all is well."""
        theirs = hello.fingerprint
        if theirs and self._model.fingerprint and theirs != self._model.fingerprint:
            return OTHER_MODEL, (
                f"the profile was measured on {self._model.name} "
                f"({self._model.fingerprint[:19]}), the worker serves another model "
                f"({theirs[:19]}): give the router a profile of this model (`toolkit profile`)"
            )
        if role != "prefill":
            return "", ""
        has = hello.signature
        wanted = ",".join(map(str, self.layers))
        repair = (
            f"start it with --enable-return-routed-experts and {LAYERS_VARIABLE}={wanted} "
            "in its environment (`toolkit launch` does)"
        )
        if has is None:
            return NONE, f"it records no signatures: {repair}"
        if has.experts != self._model.experts:
            return OTHER_MODEL, (
                f"the profile's model has {self._model.experts} experts a layer, the worker's "
                f"{has.experts}: give the router a profile of this model (`toolkit profile`)"
            )
        if has.layers != self.layers:
            return OTHER_LAYERS, (
                f"it records layers {has.layers}, the profile's are {self.layers}: {repair}"
            )
        return "", ""
