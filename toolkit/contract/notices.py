"""What routers that send to the same workers tell each other, through the workers.

A router posts a notice to a worker (`POST /toolkit/notices`), which puts it on the event streams of
those that it is for. A worker does not look at a body. Who does not know a `kind` passes the notice
over, so that routers of two releases may stand side by side. A notice that answers another one is
of the kind ANSWER, and `re` is the id of that.
"""

import re
from typing import Annotated

import msgspec

PATCH = "notices"
ROUTER_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""What a router may call itself; who gives another name is no router."""
BODY_MAX = 128 * 1024
"""Characters of a body."""
NOTICE_MAX = BODY_MAX + 32 * 1024
"""Bytes of a notice as it is posted."""
ANSWER = "answer"

RouterName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{0,64}\Z")]
Body = Annotated[str, msgspec.Meta(max_length=BODY_MAX)]
Proof = Annotated[str, msgspec.Meta(max_length=128)]


class Notice(msgspec.Struct, frozen=True, tag="notice", tag_field="type", omit_defaults=True):
    """`id`: the sender's own, no two alike. `to`: a router's name; empty: all others. `body`: JSON,
    by the kind. `proof`: that who wants this has shown the sender a key (`signed`)."""

    sender: RouterName
    id: Word
    kind: Word
    to: Word = ""
    re: Word = ""
    body: Body = "{}"
    proof: Proof = ""

    @property
    def signed(self) -> bytes:
        """What a proof is of: all that says who wants what."""
        return "\n".join((self.sender, self.to, self.id, self.kind, self.body)).encode()


class Posted(msgspec.Struct, frozen=True):
    """A worker's answer to a notice: the routers that it was told, and how many it was not, as they
    do not read what they are told."""

    told: Annotated[tuple[RouterName, ...], msgspec.Meta(max_length=1024)] = ()
    left_out: int = 0
