"""A sender is not asked to wait for CUDA events on a CPU."""

import pytest

from patches.cpu import host_indices


class Older:
    """As up to 0.5.22."""


class Newer:
    """As from 0.5.23 on."""

    supports_host_tensor_indices = True


@pytest.mark.parametrize(("sender", "says"), [(Older, None), (Newer, False)])
def test_what_a_sender_says_of_itself(
    sender: type, says: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_indices, "resolve", {host_indices.SENDER: sender}.__getitem__)
    host_indices._say_no()
    assert getattr(sender, host_indices.ASKED, None) is says
