"""A deployment with a draft: the same flags for every worker."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolkit.embedded import draft_path
from toolkit.launch.resolve import resolve
from toolkit.settings.deployment import Deployment


def flags(**fields: Any) -> dict[str, dict[str, str]]:
    plan = resolve(Deployment.model_validate({"name": "t"} | fields))
    return {
        worker.name: {
            k.removeprefix("--"): v for k, v in worker.flags.items() if "speculative" in k
        }
        for worker in plan.workers
    }


def test_both_roles_have_the_same_draft() -> None:
    found = flags(speculative="embedded")
    assert (
        found["prefill-0"]
        == found["decode-0"]
        == {
            "speculative-algorithm": "EAGLE",
            "speculative-draft-model-path": str(draft_path()),
            "speculative-num-steps": "3",
            "speculative-eagle-topk": "1",
            "speculative-num-draft-tokens": "4",
        }
    )


def test_a_draft_in_the_model_s_own_folder_has_no_path(tmp_path: Path) -> None:
    found = flags(mode="plain", speculative={"algorithm": "NEXTN", "steps": 1})["worker-0"]
    assert "speculative-draft-model-path" not in found
    assert (found["speculative-algorithm"], found["speculative-num-draft-tokens"]) == ("NEXTN", "2")
    folder = tmp_path / "draft"
    given = flags(speculative={"draft": str(folder), "steps": 2, "tokens": 3})["decode-0"]
    assert given["speculative-draft-model-path"] == str(folder)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"speculative": {"topk": 2}}, "KV that moves"),
        ({"speculative": {"algorithm": "NGRAM"}}, "EAGLE"),
        ({"speculative": {"steps": 0}}, "greater than"),
        (
            {"speculative": "embedded", "decode": {"tp": 2, "ep": 2, "relocate": True}},
            "placed experts",
        ),
    ],
)
def test_what_was_not_tried_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Deployment.model_validate({"name": "t"} | fields)
    tree = {"mode": "plain", "speculative": {"topk": 2, "tokens": 6}}
    assert Deployment.model_validate({"name": "t"} | tree).speculative is not None
