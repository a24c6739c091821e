"""What `POST /admin/policy` can change at run time, as requests follow it."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.router.request import NOTHING, Wanted
from toolkit.settings.router.choosing import FirstTokenFrom, MovesBy


@dataclass(slots=True)
class Switches:
    """`first_token`: which worker tells it, as far as it can be had. `early_choice`: whether a
    decode worker is chosen when a prefill worker asks for it before the prompt is through.
    `moves`: how running requests are moved. `wanted`: what the policies look at."""

    first_token: FirstTokenFrom
    moves: MovesBy
    early_choice: bool = True
    wanted: Wanted = NOTHING
