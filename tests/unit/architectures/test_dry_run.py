"""A dry run of every architecture for CUDA, on a machine that need not have it."""

from pathlib import Path

import pytest

from tests.architectures import checkpoints, runner
from tests.architectures.configs import ARCHITECTURES

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_dry_run_for_cuda_passes(name: str, tmp_path: Path) -> None:
    of = ARCHITECTURES[name]
    model = checkpoints.write_config(of, tmp_path / "model")
    assert runner.dry(of, model, tmp_path, "cuda").startswith(runner.YES)
