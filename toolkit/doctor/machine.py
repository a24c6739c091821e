"""The machine: system, Python, memory, disk, GPUs, shared memory, limits, ports."""

import os
import platform
import resource
import shutil
import sys
from pathlib import Path

from toolkit.doctor.finding import Finding, Level, judged
from toolkit.launch import hardware
from toolkit.launch.ports import FreePorts
from toolkit.setup import checks, libraries

GIB = checks.GIB
SHM_MIB = 64  # load snapshots and metadata buffers of a few workers
OPEN_FILES = 4096  # a connection a request and side, three workers' libraries
DEMO_PORTS = 8


def examine() -> list[Finding]:
    """Everything that does not depend on installed packages."""
    return [
        system(platform.system(), platform.machine()),
        python(sys.version_info[:3]),
        cores(len(os.sched_getaffinity(0))),
        memory(checks.available_memory()),
        disk(shutil.disk_usage(Path.home()).free),
        shared_memory(_free("/dev/shm")),
        open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        transfer_libraries(libraries.missing()),
        ports(),
        narrow_ports(),
        gpus(hardware.visible_gpus(), hardware.gpu_free_mib()),
    ]


def system(name: str, machine: str) -> Finding:
    problem = checks.check_platform(name, machine)
    return judged("system", problem is None, f"{name} {machine}", problem.text if problem else "")


def python(version: tuple[int, ...]) -> Finding:
    problem = checks.check_python(version)
    found = ".".join(map(str, version))
    return judged("Python", problem is None, found, problem.text if problem else "")


def cores(count: int) -> Finding:
    repair = "it works, slowly: each worker wants a core now and then"
    return judged("CPU cores", count >= 2, f"{count}", repair, "note")


def memory(available: int) -> Finding:
    """`available` in bytes. Below 5 GiB the demo is likely to be killed."""
    problem = checks.check_memory(available)
    level: Level = "missing" if available < 5 * GIB else "note"
    what = f"{available / GIB:.1f} GiB available"
    return judged("memory", problem is None, what, problem.text if problem else "", level)


def disk(free: int) -> Finding:
    """`free` in bytes, where run folders and logs go."""
    repair = "run folders and logs go there: free some space, or set TOOLKIT_RUNS"
    return judged("disk", free >= GIB // 2, f"{free / GIB:.1f} GiB free at home", repair)


def shared_memory(free: int) -> Finding:
    """`free` bytes of /dev/shm, where SGLang's processes exchange load and tensors."""
    repair = "in a container: start it with --shm-size=1g (GPU workers want more)"
    return judged("/dev/shm", free >= SHM_MIB << 20, f"{free >> 20} MiB free", repair)


def open_files(limit: int) -> Finding:
    """The hard limit; the router raises its own soft one as far as that."""
    shown = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    good = limit == resource.RLIM_INFINITY or limit >= OPEN_FILES
    repair = f"many requests at once need more: `ulimit -n {OPEN_FILES}` (root may raise it)"
    return judged("open files", good, f"limit {shown}", repair, "note")


def transfer_libraries(absent: list[str]) -> Finding:
    what = f"missing: {' '.join(absent)}" if absent else "libibverbs, libnl: there"
    has_apt = shutil.which("apt-get") is not None
    repair = libraries.advice(absent, is_root=False, has_apt=has_apt)
    return judged("KV transfer libraries", not absent, what, repair)


def ports() -> Finding:
    try:
        first = FreePorts().take(DEMO_PORTS)
    except OSError as error:
        return Finding("ports", "missing", str(error), "close what holds them (ss -ltnp)")
    return Finding("ports", "ok", f"free ones found, such as {first}")


def narrow_ports() -> Finding:
    """Whether a worker's ports that libraries open on all addresses can be kept to its own one."""
    import socket

    from toolkit.private_sockets import narrow

    with socket.create_server(("0.0.0.0", 0)) as listening:
        try:
            narrow(listening, "127.0.0.1")
        except OSError as error:
            return judged_ports(error.strerror)
    return judged_ports(None)


def judged_ports(wrong: str | None) -> Finding:
    repair = (
        "Mooncake's ports (15000 to 17000, KV memory) stay open on all addresses: close them to "
        "others: nft 'add table inet toolkit'; nft 'add chain inet toolkit input { type filter "
        "hook input priority 0; }'; nft 'add rule inet toolkit input iif != lo tcp dport "
        "15000-17000 drop'"
    )
    what = wrong or "what libraries open on all addresses is narrowed to the worker's own"
    return judged("workers' ports", wrong is None, what, repair, "note")


def gpus(names: tuple[str, ...], free_mib: tuple[int, ...]) -> Finding:
    """`names` as CUDA_VISIBLE_DEVICES takes them; `free_mib` of every GPU in the machine."""
    if not names:
        return Finding("GPU", "note", "none seen", "recipes with device: cpu run all the same")
    free = ", ".join(f"{mib / 1024:.0f}" for mib in free_mib)
    return Finding("GPU", "ok", f"{len(names)} usable; GiB free: {free}")


def _free(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
