"""Servers whose connections cannot be taken over are refused before they serve."""

import json

import pytest

from tests.sglang_python import run_python
from toolkit.embedded import model_path

CODE = """
import json, types
import patches
patches.register()
from sglang.srt.server_args import ServerArgs
from patches.streams import event_stream

served = []
arguments = ServerArgs(model_path={path!r}, device="cpu", **json.loads({flags!r}))
manager = types.SimpleNamespace(server_args=arguments, load_snapshot_reader="reader")
wanted = event_stream.expected(event_stream.Process.SCHEDULER)
state = types.SimpleNamespace(
    tokenizer_manager=manager, scheduler_info={{"toolkit_patches": list(wanted)}}
)
event_stream._refuse_unpatched_scheduler(served.append, state)
print(len(served), type(manager.load_snapshot_reader).__name__)
"""


@pytest.mark.parametrize(
    ("flags", "refused"),
    [({}, False), ({"enable_http2": True}, True), ({"ssl_certfile": "/x.pem"}, True)],
)
def test_tls_and_http_2_are_refused(flags: dict[str, object], refused: bool) -> None:
    done = run_python(CODE.format(path=str(model_path()), flags=json.dumps(flags)))
    if refused:
        assert done.returncode == 78, done.stderr[-2000:]
        assert "refused: --enable-http2 and --ssl-certfile" in done.stderr
    else:
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split()[-2:] == ["1", "SharedReader"]
