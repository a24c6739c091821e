"""Where a worker's experts lie, as it answers `GET /toolkit/placement` (`patches.relocate`)."""

from typing import Annotated

import msgspec

from toolkit.contract.numbers import Name, Serial, Small, Smalls, Sum, Text


class PlacementState(msgspec.Struct, frozen=True):
    """The physical-to-logical map of one server.

    `serial`: how many orders it has carried out. `layers`: by number of a model layer, the logical
    expert in each physical slot [P]; those of `moe_layers` count, the others have no experts.
    `experts`: logical ones a layer, `expert_bytes`: what one weighs. `dispatch`: SGLang's
    `--ep-dispatch-algorithm`. `obstacle`: why experts cannot be moved there, if they cannot.
    """

    serial: Serial
    experts: Small
    moe_layers: Smalls
    gpus: Small
    gpus_per_node: Small
    dispatch: Name
    layers: Annotated[dict[Name, Smalls], msgspec.Meta(max_length=2**12)]
    expert_bytes: Sum = 0
    obstacle: Text = ""


_decoder = msgspec.json.Decoder(PlacementState)


def decode(body: bytes) -> PlacementState:
    """The state in an answer's body. ValueError: it is none; says which field is wrong."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no expert map: {error}") from error
