"""Workers fit each other by what they say, as far as both say it."""

import pytest

from toolkit.contract.events import Hello
from toolkit.router.fitting import why_other_layout, why_other_model

BASE = Hello(
    fingerprint="sha256:1", page_size=16, transfer="mooncake", dtype="bfloat16", kv_dtype="auto"
)


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        ({}, {}, None),
        ({"page_size": 64}, {}, "page_size 64, decode-0 has 16"),
        ({"transfer": "nixl"}, {}, "disaggregation_transfer_backend nixl"),
        ({"transfer": ""}, {}, None),
        ({"dtype": "float16"}, {}, "kv_cache_dtype float16, decode-0 has bfloat16"),
        ({"dtype": "float16", "kv_dtype": "fp8_e4m3"}, {}, None),
        ({"kv_dtype": "fp8_e4m3"}, {"kv_dtype": "fp8_e5m2"}, "kv_cache_dtype fp8_e4m3"),
        ({"kv_dtype": "fp8_e4m3"}, {"kv_dtype": "fp8_e4m3", "dtype": "float16"}, None),
        ({"kv_dtype": "fp8_e4m3"}, {"kv_dtype": ""}, None),
        ({"tp_size": 4}, {"tp_size": 1}, None),
    ],
)
def test_kv_must_mean_the_same(
    mine: dict[str, object], theirs: dict[str, object], why: str | None
) -> None:
    found = why_other_layout(_but(mine), _but(theirs), "decode-0")
    assert found is None if why is None else found is not None and why in found


@pytest.mark.parametrize(
    ("mine", "theirs", "fits"),
    [("a", "a", True), ("a", "b", False), ("", "b", True), ("a", "", True)],
)
def test_all_serve_one_model(mine: str, theirs: str, fits: bool) -> None:
    one, other = (_but({"fingerprint": each}) for each in (mine, theirs))
    found = why_other_model(one, other, "decode-0")
    assert (found is None) is fits


def _but(changes: dict[str, object]) -> Hello:
    import msgspec

    return msgspec.structs.replace(BASE, **changes)
