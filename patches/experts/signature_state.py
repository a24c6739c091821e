"""What a scheduler keeps for signatures: `patches.experts.signature` fills it, and a prompt that
stops between layers has it put back (`patches.preempt.boundary`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patches.experts.signature_cache import SignatureCache
from patches.sglang_types import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.contract.events import Signature


COUNT_AT = "_toolkit_count_at"
"""Of a request: a token before its prompt's end up to which its experts are counted, too."""


@dataclass
class Counted:
    """What one forward counted: request `rids[i]` of `tokens[i]` has row i of int32 [R, S * E + 1].

    `counts` is on the device until SGLang has copied the forward's results.
    """

    rids: list[str]
    tokens: list[int]
    counts: Tensor

    def wire(self) -> dict[str, Signature]:
        """By request id. The counts must be on the host."""
        from toolkit.signatures.wire import pack

        return {
            rid: pack(row[:-1], tokens, complete=bool(row[-1] == tokens))
            for rid, tokens, row in zip(self.rids, self.tokens, self.counts.numpy(), strict=True)
        }


@dataclass
class SignatureState:
    """`batch` is the one that is being launched."""

    cache: SignatureCache | None = None
    batch: Batch | None = None
    inline: Counted | None = None
    """Without overlap there is no output object that could carry what was counted."""
