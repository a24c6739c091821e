"""SGLang's ranks on a CPU go on without NCCL, though torch brought the library."""

from tests.sglang_python import run_python

# A library that loads, as beside a CUDA build of torch; without the patch SGLang calls it.
BINDS = """
from patches.worker import prepare_process
prepare_process()
from patches.cpu.nccl import _absent
from sglang.srt.distributed.device_communicators import pynccl, pynccl_wrapper
from sglang.srt.distributed.utils import StatelessProcessGroup

group = object.__new__(StatelessProcessGroup)
group.rank, group.world_size = 0, 2
loads = pynccl_wrapper.NCCLLibrary
loads.__init__ = lambda library, so_file=None: None
try:
    pynccl.PyNcclCommunicator(group, "cpu")
except AttributeError as error:
    print("used:", error)
loads.__init__ = lambda library, so_file=None: _absent(None, library, so_file)
found = pynccl.PyNcclCommunicator(group, "cpu")
print("available:", found.available, "disabled:", found.disabled)
"""


def test_ranks_go_on_without_the_library() -> None:
    found = run_python(BINDS)
    assert found.returncode == 0, found.stderr[-2000:]
    assert "used:" in found.stdout
    assert "available: False disabled: True" in found.stdout
