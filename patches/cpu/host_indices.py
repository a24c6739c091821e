"""A prefill worker on CPU sends KV without pinned memory and CUDA events.

SGLang 0.5.23 (`srt/disaggregation/prefill.py:1750`) copies the page numbers of every KV transfer to
pinned memory and records a CUDA event, on whatever device: the first transfer ends a CPU worker. It
asks the sender whether it can wait for such an event; here it cannot.
"""

from patches.base import EITHER, Patch, resolve

SENDER = "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender"
ASKED = "supports_host_tensor_indices"


def _say_no() -> None:
    sender = resolve(SENDER)
    if getattr(sender, ASKED, False):  # not yet in 0.5.22
        setattr(sender, ASKED, False)


PATCH = Patch(
    name="cpu_host_indices",
    why="SGLang 0.5.23 pins memory for each KV transfer, which needs CUDA",
    processes=EITHER,
    requires=(SENDER,),
    attach=_say_no,
    cpu_only=True,
)
