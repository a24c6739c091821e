"""Which packages travel, and what of them stays behind.

The machine's image has Python 3.12, torch 2.11.0, Triton 3.6 and what its makers list; NEEDS is
what SGLang's server and this project import besides.
Versions are those of `toolkit/setup/cpu.lock`, except where the SGLang wheel itself pins another.
"""

import re
from collections.abc import Mapping

from toolkit.setup.lockfile import normalise

PYTHON = "3.12"
SGLANG = "0.5.17"
"""The release that pins torch 2.11.0."""
KERNEL = "sglang-kernel"
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
)
"""pip takes each by its exact name only; the image's C library is 2.39."""

NEEDS = (
    "annotated-types", "apache-tvm-ffi", "asttokens", "cffi", "compressed-tensors", "dill",
    "distro", "executing", "fastapi", "gguf", "google-re2", "httptools", "interegular", "ipython",
    "ipython_pygments_lexers", "jedi", "jiter", "jsonschema", "jsonschema-specifications",
    "llguidance", "loguru", "matplotlib-inline", "msgspec", "openai", "openai-harmony",
    "opentelemetry-api", "orjson", "parso", "partial-json-parser", "pexpect", "prompt_toolkit",
    "ptyprocess", "pure_eval", "pybase64", "pycparser", "pydantic", "pydantic_core",
    "python-multipart", "pyzmq", "referencing", "rpds-py", "setproctitle", "sniffio",
    "soundfile", "stack-data", "starlette", "tokenizers", "traitlets", "transformers",
    "typing-inspection",
    "uvicorn", "watchfiles", "wcwidth", "xgrammar", "zstandard",
)  # fmt: skip
NIXL = {"nixl": "1.5.1", "nixl-cu13": "1.5.1"}
"""KV transfer inside one GPU's memory."""
MOONCAKE = {"mooncake-transfer-engine-cuda13": "0.3.14"}
"""What decode workers send running requests with; its CUDA 13 build."""
SYSTEM = ("libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200", "libnuma1")
"""Debian packages with the libraries that Mooncake's engine is linked with; taken where apt is."""

ARCHITECTURES = ("sm90", "sm100")
"""Builds of the kernels: sm90 for H100 and H200, sm100 for all others."""


def left_behind(project: str, arch: str) -> tuple[str, ...]:
    """Patterns of a wheel's files that nothing here imports, and that are most of its size."""
    other = next(name for name in ARCHITECTURES if name != arch)
    patterns = {
        # FlashAttention 3 is 342 of 383 MB; the checks use SGLang's Triton attention.
        KERNEL: ("*/flash_ops*", f"sgl_kernel/{other}/*", "*/infllm_ops*", "*/flashmla_ops*"),
        "xgrammar": ("xgrammar/lib/*.a",),
        "nixl-cu13": ("nixl_ep_cu13/*", "*perftest*"),
        "mooncake-transfer-engine-cuda13": (
            "mooncake/_store*", "mooncake/mooncake_master", "mooncake/mooncake_client",
            "mooncake/*_pg*", "mooncake/_ep.*", "mooncake/*_ep_device*", "mooncake/*_bench",
            "*.libs/libetcd_wrapper*",
        ),
    }  # fmt: skip
    return patterns.get(project, ())


def exact_pins(metadata: str) -> dict[str, str]:
    """`Requires-Dist: name==version` lines of a wheel's METADATA, by normal name; no extras."""
    found = re.findall(r"^Requires-Dist: ([\w.-]+)(?:\[[^]]*\])?==([\w.]+)$", metadata, re.M)
    return {normalise(name): version for name, version in found}


def needs(lock: Mapping[str, str], pins: Mapping[str, str]) -> dict[str, str]:
    """Versions of NEEDS and the kernels: the SGLang wheel's exact pins before the lock's."""
    known = {normalise(name): version for name, version in lock.items()} | dict(pins)
    return {name: known[normalise(name)] for name in (KERNEL, *NEEDS)}
