"""The fields of SGLang's requests, from its own classes.

Run in a process of its own, since importing them takes a gigabyte: `python -m
tests.benchmarks.mutation_parts.fields` prints one JSON object.
"""

import json
import os
import subprocess
import sys


def fields() -> dict[str, list[str]]:
    """Names of fields: of `generate`, its `sampling_params`, `chat` and `completions`."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TOOLKIT_DEVICE": "cpu", "SGLANG_USE_CPU_ENGINE": "1"},
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Import SGLang as a CPU worker does and print the names."""
    from patches.worker import prepare_process

    prepare_process()
    from dataclasses import fields as dataclass_fields

    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    names = {
        "generate": [field.name for field in dataclass_fields(GenerateReqInput)],
        "sampling": list(SamplingParams.__struct_fields__),
        "chat": list(ChatCompletionRequest.model_fields),
        "completions": list(CompletionRequest.model_fields),
    }
    print(json.dumps(names))


if __name__ == "__main__":
    main()
