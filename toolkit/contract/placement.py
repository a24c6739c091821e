"""Where a worker's experts lie, as it answers `GET /toolkit/placement` (`patches.relocate`)."""

from __future__ import annotations

import msgspec


class PlacementState(msgspec.Struct, frozen=True):
    """The physical-to-logical map of one server.

    `serial`: how many orders it has carried out. `layers`: by number of a model layer, the logical
    expert in each physical slot [P]; those of `moe_layers` count, the others have no experts.
    `experts`: logical ones a layer, `expert_bytes`: what one weighs. `dispatch`: SGLang's
    `--ep-dispatch-algorithm`. `obstacle`: why experts cannot be moved there, if they cannot.
    """

    serial: int
    experts: int
    moe_layers: tuple[int, ...]
    gpus: int
    gpus_per_node: int
    dispatch: str
    layers: dict[str, tuple[int, ...]]
    expert_bytes: int = 0
    obstacle: str = ""


_decoder = msgspec.json.Decoder(PlacementState)


def decode(body: bytes) -> PlacementState:
    """The state in an answer's body. ValueError: it is none; says which field is wrong."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no expert map: {error}") from error
