"""The exact command line and environment of a worker and of a router."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.contract.addresses import is_ipv6
from toolkit.contract.capturing import SCATTERED
from toolkit.contract.headers import REQUEST_ID
from toolkit.contract.variables import (
    BACKGROUND_VARIABLE,
    DEVICE_VARIABLE,
    DP_PROFILE_VARIABLE,
    EARLY_CHOICE_VARIABLE,
    EARLY_PLACE_VARIABLE,
    LAYERS_VARIABLE,
    MOVE_VARIABLE,
    PATCHES_VARIABLE,
    PAUSE_VARIABLE,
    PREEMPT_VARIABLE,
    RELOCATE_VARIABLE,
    WAITING_VARIABLE,
)
from toolkit.launch.model import ModelFacts, draft_path
from toolkit.launch.sglang_router import KEY_ENV
from toolkit.launch.signature_flags import RECORD
from toolkit.settings.deployment import Deployment
from toolkit.settings.dp_policy import by_signature
from toolkit.settings.role import Role
from toolkit.settings.speculative import Speculative

CPU_ENV = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

TRANSFER_ENV = {
    # Mooncake's TCP transport fails a transfer for which its queue to a peer has no room, at once
    # or after a second, and one of scattered KV slots has a piece a token, layer, K and V. So: the
    # longest queues that it allows, and the time that it grants a peer that does not read.
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "30000",
    # After one failed transfer SGLang's prefill never sends anything to that decode worker again,
    # unless it is told to ask whether that lives.
    "SGLANG_ENABLE_FAILED_SESSION_PROBE": "1",
    "SGLANG_FAILED_SESSION_PROBE_INTERVAL_S": "1",
}

LATE_ENV = {
    # KV is there when a decode worker asks for it, so what has not come after a minute will not.
    # SGLang grants five, as its decode workers wait for the prefill too.
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60",
}

CRASH_ENV = {
    # A server of which one rank has died stands still for 65 s, with the requests of all its ranks,
    # before it ends: it waits for core dumps that nobody has enabled, and for py-spy. Who wants
    # them says so in the deployment's `env`.
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
}

Flags = dict[str, Any]


def source_root() -> Path:
    """The folder that holds the packages `toolkit` and `patches`."""
    return Path(__file__).resolve().parents[2]


def python_env() -> dict[str, str]:
    """PYTHONPATH with which a child finds `toolkit` and `patches` wherever it runs."""
    root = str(source_root())
    if root in (p for p in sys.path if p.endswith("site-packages")):
        return {}
    old = os.environ.get("PYTHONPATH", "")
    parts = [root] + [p for p in old.split(os.pathsep) if p and p != root]
    return {"PYTHONPATH": os.pathsep.join(parts)}


def worker_flags(
    deployment: Deployment,
    role_name: str,
    role: Role,
    model: ModelFacts,
    *,
    host: str,
    port: int,
    bootstrap_port: int | None,
    dispatch: str,
    record: bool = False,
) -> Flags:
    """SGLang flags of one worker as a mapping, the file's `args` last. True means a bare flag.
    `record`: it makes signatures, whatever `capture_experts` says."""
    cpu = deployment.device == "cpu"
    flags: Flags = {
        "model-path": model.path,
        "served-model-name": model.served_name,
        "host": host,
        "port": port,
        "device": deployment.device,
        "tp": role.tp if role.tp > 1 else None,
        "dp": role.dp if role.dp > 1 else None,
        "ep": role.ep if role.ep > 1 else None,
        "enable-dp-attention": role.dp_attention,
        "context-length": deployment.model.context_length,
        "trust-remote-code": deployment.model.trust_remote_code,
        "max-total-tokens": role.kv_tokens or (16384 if cpu else None),
        "max-running-requests": role.max_running or (16 if cpu else None),
        "mem-fraction-static": role.mem_fraction,
        # Access logs would be most of the log (health probes, one line a request).
        "log-level-http": "warning",
        # Policies need fresh load: SGLang's default publishes every 15 decode steps.
        "load-snapshot-publish-interval": 1,
    }
    flags[RECORD] = deployment.capture_experts or record or role.relocate
    if cpu:
        flags |= {"attention-backend": "torch_native", "dtype": "float32"}
        # An idle CPU scheduler polls a whole core. Under DP attention a sleeping one costs 2 s on
        # the first token, and concurrent ranks need --enable-dp-lm-head (no gloo all-to-all).
        flags |= {"enable-dp-lm-head": True} if role.dp_attention else {"sleep-on-idle": True}
        if role_name == "decode":
            # The default (host_pool) refuses to start with less than 10 GiB of free memory,
            # however small its pool (mem_cache/hicache_auto_size.py), and copies by CUDA kernels.
            flags["disaggregation-decode-retraction-backup"] = "cpu_tensor"
    if role.preempt is not None and role_name != "decode":
        # Both would have launched the whole of a prompt before anybody looks.
        flags |= {"disable-overlap-schedule": True, "disable-prefill-cuda-graph": not cpu}
    if role.relocate or role.expert_placement:
        # With an all-to-all each rank takes the nearest replica; without, all must take the same.
        scattered = str(role.args.get("moe-a2a-backend", "none")) != "none"
        flags["ep-dispatch-algorithm"] = "static" if scattered else "dynamic"
    if role.dp_policy is not None:
        flags["load-balance-method"] = role.dp_policy
    if deployment.mode == "pd":
        flags["disaggregation-mode"] = role_name
        flags["disaggregation-transfer-backend"] = transfer_backend(deployment)
        flags["disaggregation-ib-device"] = deployment.transfer.ib_device
        flags["disaggregation-bootstrap-port"] = bootstrap_port
        if role_name == "prefill":
            # The forward runs before a decode worker is chosen; 1 attempt stalls in mixed traffic.
            early = dispatch == "late" or by_signature(deployment.decode.dp_policy)
            flags["optimistic-prefill-attempts"] = 1000 if early else None
    if deployment.speculative is not None:
        flags |= speculative_flags(deployment, deployment.speculative)
    own = {k.lstrip("-").replace("_", "-"): v for k, v in role.args.items()}
    if (
        (flags | own)[RECORD]
        and not cpu
        and role_name != "decode"
        and role.dp_attention
        and role.dp > 1
        and own.get("moe-a2a-backend") not in SCATTERED
    ):
        # They and the capturer do not go together (`toolkit.contract.capturing`).
        flags["disable-prefill-cuda-graph"] = True
    return flags | own


def speculative_flags(deployment: Deployment, asked: Speculative) -> Flags:
    """Of a worker whose draft proposes tokens; the same for every role."""
    draft = None if asked.draft is None else str(draft_path(deployment, asked.draft))
    return {
        "speculative-algorithm": asked.algorithm,
        "speculative-draft-model-path": draft,
        "speculative-num-steps": asked.steps,
        "speculative-eagle-topk": asked.topk,
        "speculative-num-draft-tokens": asked.tokens or asked.steps + 1,
    }


def to_argv(flags: Mapping[str, Any]) -> list[str]:
    """Flags as arguments: True bare, None and False left out, a list as several values, a mapping
    as JSON."""
    argv: list[str] = []
    for key, value in flags.items():
        if value is None or value is False:
            continue
        argv.append(f"--{key}")
        if value is True:
            continue
        if isinstance(value, dict):
            argv.append(json.dumps(value, separators=(",", ":")))
        elif isinstance(value, list | tuple):
            argv.extend(str(v) for v in value)
        else:
            argv.append(str(value))
    return argv


def transfer_backend(deployment: Deployment) -> str:
    """The KV transfer backend, `auto` resolved by the device."""
    if deployment.transfer.backend != "auto":
        return deployment.transfer.backend
    return "mooncake_tcp" if deployment.device == "cpu" else "mooncake"


def worker_env(
    deployment: Deployment,
    role_name: str,
    role: Role,
    *,
    address: str,
    devices: tuple[str, ...],
    cores: int,
    dispatch: str,
    signature_layers: tuple[int, ...] = (),
    profile: str = "",
    kept: str = "1",
) -> dict[str, str]:
    """Variables set on top of the launcher's environment. `signature_layers`: the model's layers
    whose experts the worker is to record; `profile`: the folder of the profile by which its DP
    controller reads what others have recorded; `kept`: the file that keeps its expert map."""
    env = {PATCHES_VARIABLE: "1", DEVICE_VARIABLE: deployment.device, "SGLANG_HOST_IP": address}
    env |= python_env() | CRASH_ENV
    # With --log-requests SGLang's own lines name a request as its client and the router do.
    env["SGLANG_LOG_REQUEST_HEADERS"] = REQUEST_ID
    if is_ipv6(address):
        env["MC_USE_IPV6"] = "1"  # else Mooncake looks for IPv4 addresses of its peers only
    if signature_layers:
        env[LAYERS_VARIABLE] = ",".join(map(str, signature_layers))
    if profile and by_signature(role.dp_policy):
        env[DP_PROFILE_VARIABLE] = profile
    if role.waiting.text:
        env[WAITING_VARIABLE] = role.waiting.text
    if role.preempt is not None and role_name == "decode":
        env[PAUSE_VARIABLE] = role.preempt.text
    elif role.preempt is not None:
        env[PREEMPT_VARIABLE] = role.preempt.text
        # Else every forward reads its batch from the same buffers: another one in its middle would
        # overwrite them.
        env["SGLANG_EAGER_INPUT_NO_COPY"] = "1"
    if role.relocate:
        env[RELOCATE_VARIABLE] = kept
    sends = role_name == "decode" and deployment.sends
    if sends:
        env[MOVE_VARIABLE] = "1"
    if role_name == "prefill" or sends:
        env |= TRANSFER_ENV
    if role_name == "prefill" and dispatch == "late" and role.early_choice is not None:
        env[EARLY_CHOICE_VARIABLE] = f"{role.early_choice:g}"
    if role_name == "decode":
        # The shortest that SGLang allows: a host that dies closes no connection, so that decode
        # hears of it by heartbeats alone (`patches/pd/prefill_restart.py`).
        env["SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL"] = "2"
        if dispatch == "late":
            env |= LATE_ENV
        if role.early_place:
            env[EARLY_PLACE_VARIABLE] = "1"
    if deployment.device == "cpu":
        env |= CPU_ENV
        if role_name == "prefill":
            # Else the first prefix hit calls torch.cuda.Event.
            env["SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"] = "0"
        if role.ranks > 1:
            binding = "|".join(str(rank % cores) for rank in range(role.ranks))
            env["SGLANG_CPU_OMP_THREADS_BIND"] = binding
        if role.background:
            env[BACKGROUND_VARIABLE] = "1"
    else:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return env | deployment.env | role.env


def sglang_router_command(
    deployment: Deployment, port: int, prometheus_port: int, workers: list[dict[str, Any]]
) -> list[str]:
    """SGLang's own router (sglang_router 0.3.2) over the same workers."""
    router, said = deployment.router, deployment.router.said  # the rest is as its own defaults
    argv = [sys.executable, "-m", "toolkit.launch.sglang_router"]
    if router.api_key_env is not None:
        argv += [KEY_ENV, router.api_key_env]
    if deployment.mode == "pd":
        argv.append("--pd-disaggregation")
        for worker in workers:
            argv += [f"--{worker['role']}", worker["url"]]
            if worker["role"] == "prefill":
                argv.append(str(worker["bootstrap_port"]))
    else:
        argv += ["--worker-urls", *(w["url"] for w in workers)]
    flags: Flags = {
        "host": router.host,
        "port": port,
        "prometheus-port": prometheus_port,
        "policy": "round_robin",
        "prefill-policy": said.get("prefill_policy") if deployment.mode == "pd" else None,
        "decode-policy": said.get("decode_policy") if deployment.mode == "pd" else None,
        "max-concurrent-requests": said.get("max_inflight"),
        "queue-size": said.get("max_queue"),
        "request-timeout-secs": int(router.request_timeout_s)
        if "request_timeout_s" in said
        else None,
        "worker-startup-timeout-secs": int(deployment.timeouts.start),
    }
    extra = {k.lstrip("-").replace("_", "-"): v for k, v in router.args.items()}
    return argv + to_argv(flags | extra)
