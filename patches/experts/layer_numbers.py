"""Tell every router of a model which layer is its own.

SGLang's routed-experts capturer writes what a layer's top-k picked to that layer's row. Twenty of
the model files of SGLang 0.5.21 make their `TopK` without a layer number, Mixtral's, Llama 4's and
OLMoE's among them (`srt/models/mixtral.py:91`, `llama4.py:114`). `buffer[:batch, None, :]` of
`srt/state_capturer/base.py` then ends the scheduler with an error about shapes; for a batch of one
token, and where the batch is as large as the model has layers, it silently writes nonsense into all
layers instead. The number stands in the module's name.

Two routers of one layer (`ernie45_moe_vl.py` has one for text and one for images) would overwrite
each other: such a worker ends, and says why.
"""

import re
from collections import Counter
from collections.abc import Iterable

from patches.base import Hook, Patch, PatchError, Process, refuse
from patches.layers import Original
from patches.sglang_types import ModelRunner, Router

NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_REMEDY = "leave out router.profile and capture_experts for this model"


def number_of(name: str) -> int:
    """The layer of a module by its name, such as `model.layers.3.block_sparse_moe.topk`.

    PatchError: the name has no number.
    """
    found = NUMBER.search(name)
    if found is None:
        raise PatchError(f"no layer number in {name}, so its experts cannot be kept: {_REMEDY}")
    return int(found[1])


def give_numbers(modules: Iterable[tuple[str, Router]]) -> int:
    """Number the routers [(name, module)] that have none; how many these were.

    PatchError: a layer has several, or one has no place in a layer.
    """
    kept = [(name, each) for name, each in modules if each.topk_config.allow_routed_experts_capture]
    numbers = {
        name: number_of(name) if each.layer_id is None else each.layer_id for name, each in kept
    }
    twice = sorted(layer for layer, count in Counter(numbers.values()).items() if count > 1)
    if twice:
        names = ", ".join(name for name, layer in numbers.items() if layer == twice[0])
        raise PatchError(f"layer {twice[0]} has several routers ({names}): {_REMEDY}")
    without = [(name, each) for name, each in kept if each.layer_id is None]
    for name, each in without:
        each.layer_id = numbers[name]
    return len(without)


def _number_first(original: Original[None], runner: ModelRunner) -> None:
    if runner.server_args.enable_return_routed_experts and not runner.is_draft_worker:
        from sglang.srt.layers.moe.topk import TopK

        named = runner.model.named_modules()
        try:
            give_numbers((name, each) for name, each in named if isinstance(each, TopK))
        except PatchError as error:
            refuse(str(error))
    original(runner)


PATCH = Patch(
    name="expert_layers",
    why="what a router without a layer number picks is kept for all layers, or ends the worker",
    independent_of={
        "expert_capture": "layers are numbered before the capturer is made, its rows marked behind",
    },
    processes=frozenset({Process.SCHEDULER}),
    hooks=(
        Hook(
            "sglang.srt.model_executor.model_runner.ModelRunner.init_routed_experts_capturer",
            _number_first,
            ("self",),
        ),
    ),
    requires=(
        "sglang.srt.layers.moe.topk.TopK",
        "sglang.srt.layers.moe.topk.capture_routed_experts_if_allowed",
        "sglang.srt.state_capturer.base.BaseTopkCapturer.capture",
    ),
)
