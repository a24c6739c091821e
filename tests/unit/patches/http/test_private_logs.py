"""What a worker logs of requests: real messages of SGLang's own code."""

import logging
from typing import Any

from patches.http.private_logs import without_values
from tests.sglang_python import run_python

PROMPT = "zebra-Quagga-7731"

# A tool call and a schema that do not parse, through SGLang's own code, with and without the patch.
QUOTES = f"""
import logging, sys
logging.basicConfig(level=logging.DEBUG, format="%(message)s", stream=sys.stdout, force=True)
from patches.worker import prepare_process
prepare_process()
from sglang.srt.function_call.qwen25_detector import Qwen25Detector
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend
from patches.http.private_logs import PATCH
def talk():
    Qwen25Detector().detect_and_parse("<tool_call>\\n{{ {PROMPT}\\n</tool_call>", [])
    BaseGrammarBackend._not_supported(None, "regex", "{PROMPT}")
    log = logging.getLogger("sglang.srt.entrypoints.http_server")
    try:
        int("{PROMPT}")
    except ValueError:
        log.exception("a request failed")
    logging.getLogger("sglang.srt.managers.scheduler").info("Decode batch, #running-req: 3")
talk()
print("---- patched")
PATCH.attach()
PATCH.attach()
talk()
"""


def test_sglang_s_messages_quote_no_request() -> None:
    found = run_python(QUOTES)
    assert found.returncode == 0, found.stderr[-2000:]
    before, after = found.stdout.split("---- patched")
    assert before.count(PROMPT) >= 3  # what this is for
    assert PROMPT not in after
    assert "Failed to parse JSON part: …, JSON parse error: …" in after
    assert "Skip unsupported key_type=…, key_string=…" in after
    assert "a request failed\nTraceback" not in after and "ValueError: …" in after
    assert "in talk\n" in after  # where it was raised is still said
    assert "Decode batch, #running-req: 3" in after


def record(name: Any, message: Any, *args: Any, path: str = "/nowhere.py") -> Any:
    return logging.LogRecord(name, logging.ERROR, path, 1, message, args, None)


# What SGLang logs of a request that it refuses, at the lines where it does.
REFUSES = f"""
import importlib.util, logging, sys
logging.basicConfig(level=logging.DEBUG, format="%(message)s", stream=sys.stdout, force=True)
from patches.worker import prepare_process
prepare_process()
from patches.http.private_logs import PATCH, QUOTING_MESSAGES
WHERE = {{
    "sglang.srt.entrypoints.http_server": ("[http_server] Error: ", "warmup error: "),
    "sglang.srt.managers.schedule_batch": ("error_msg}}, {{self.rid=}}", ""),
}}
assert WHERE.keys() == QUOTING_MESSAGES.keys()
def talk():
    for name, (refusal, other) in WHERE.items():
        path = importlib.util.find_spec(name).origin
        lines = open(path).read().splitlines()
        log = logging.getLogger(name)
        for mark, value in ((refusal, "{PROMPT}"), (other, "no memory")):
            at = next((n for n, line in enumerate(lines, 1) if mark and mark in line), None)
            if at is not None:
                message = mark + value
                log.handle(log.makeRecord(name, logging.ERROR, path, at, message, (), None))
talk()
print("---- patched")
PATCH.attach()
talk()
"""


def test_refusals_quote_no_request_and_the_rest_is_said() -> None:
    found = run_python(REFUSES)
    assert found.returncode == 0, found.stderr[-2000:]
    before, after = found.stdout.split("---- patched")
    assert before.count(PROMPT) == 2 and "no memory" in before
    assert PROMPT not in after
    assert "[http_server] Error: …" in after and "…, self.rid=…" in after
    assert "warmup error: no memory" in after


def test_what_cannot_be_told_apart_is_left_out() -> None:
    quiet = without_values(record("sglang.srt.parser.x", "%s", PROMPT))
    assert quiet.getMessage() == "… (sglang.srt.parser.x:1)"


def test_other_messages_stay() -> None:
    assert without_values(record("uvicorn.error", "on %s", "port")).getMessage() == "on port"
    assert without_values(record("sglang.srt.mem_cache.x", "%d", 3)).getMessage() == "3"
