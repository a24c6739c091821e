"""Other architectures than the embedded model's, tiny and with random weights, on real workers."""

import asyncio
from pathlib import Path

import pytest

from tests.architectures import checkpoints, runner
from tests.architectures.configs import ARCHITECTURES
from tests.architectures.reference import Reference
from tests.architectures.trial import TOKENS, prompts
from tests.e2e import calls
from tests.e2e.worker_process import prefill_mode, worker
from tests.e2e.workers import events
from toolkit.contract.variables import LAYERS_VARIABLE
from toolkit.signatures.wire import unpack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.touched("cpu-engine")]


def test_latent_attention_and_groups_of_experts(tmp_path: Path) -> None:
    """DeepSeek-V3, one prefill and one decode worker without a router: what is parked is fetched by
    decode, tokens are those of transformers, and so are signatures."""
    of = ARCHITECTURES["deepseek-v3"]
    model = checkpoints.write(of, tmp_path / "model")
    reference = Reference(of, model)
    asked = prompts(of)[1:5]

    async def main(prefill: str, decode: str, port: int) -> None:
        async with calls.session() as http, events(prefill) as lines:
            for room, ids in enumerate(asked, start=1):
                at = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
                body = calls.greedy(ids, TOKENS, stream=False) | at | {"rid": f"latent-{room}"}
                post = asyncio.create_task(calls.generate(http, prefill, body))
                async for event in lines:
                    if event["type"] == "prefill_done" and event["rid"] == body["rid"]:
                        break
                counts, signature = unpack(event["signature"])
                assert signature.complete
                assert (counts.reshape(len(of.moe_layers), -1) == reference.counts(ids)).all()
                answer = await calls.generate(http, decode, body)
                assert (answer.error, answer.ids) == ("", reference.greedy(ids, TOKENS))
                await post

    mode = prefill_mode()
    port = int(mode[mode.index("--disaggregation-bootstrap-port") + 1])
    backend = mode[mode.index("--disaggregation-transfer-backend") + 1]
    common = ("--model-path", str(model), "--sleep-on-idle")
    decode_mode = ("--disaggregation-mode", "decode", "--disaggregation-transfer-backend", backend,
                   "--disaggregation-decode-retraction-backup", "cpu_tensor")  # fmt: skip
    layers = ",".join(map(str, of.moe_layers))
    with (
        worker(
            *common,
            *mode,
            "--enable-return-routed-experts",
            log=tmp_path / "prefill.log",
            **{LAYERS_VARIABLE: layers},
        ) as prefill,
        worker(*common, *decode_mode, log=tmp_path / "decode.log") as decode,
    ):
        calls.run(main(prefill, decode, port))


@pytest.mark.full
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_works_works_and_the_rest_is_refused(name: str, tmp_path: Path) -> None:
    cells = runner.tried(ARCHITECTURES[name], tmp_path)
    assert not runner.failed(cells), cells


@pytest.mark.full
@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v3"])
def test_kv_that_comes_back_has_no_experts(name: str, tmp_path: Path) -> None:
    cells = runner.cached(ARCHITECTURES[name], tmp_path)
    assert not runner.failed(cells), cells
