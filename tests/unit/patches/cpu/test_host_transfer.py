"""KV rows that travel between the CPU worker's two pools."""

import pytest

from patches.cpu.host_transfer import transfer

torch = pytest.importorskip("torch")


def test_rows_of_every_layer_go_where_they_are_named() -> None:
    source = [torch.arange(24.0).view(6, 4) + 100 * layer for layer in range(3)]
    target = [torch.zeros(8, 4) for _ in range(3)]
    rows, places = torch.tensor([5, 0, 3]), torch.tensor([1, 7, 2])
    transfer(
        src_layers=source, dst_layers=target, src_indices=rows, dst_indices=places, page_size=1
    )
    for before, after in zip(source, target, strict=True):
        assert after[places].equal(before[rows])
        assert not after[[0, 3, 4, 5, 6]].any()


def test_pools_of_different_depth_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        transfer(
            src_layers=[torch.zeros(2, 1)] * 2,
            dst_layers=[torch.zeros(2, 1)],
            src_indices=torch.tensor([0]),
            dst_indices=torch.tensor([1]),
            page_size=1,
        )
