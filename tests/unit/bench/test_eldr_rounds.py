"""What the ELDR benchmark plays: nothing that was fitted to, with the model it is given."""

import json
from pathlib import Path

from tests.benchmarks.shared.eldr_rounds import LEAST_PROMPTS, PROFILE, RECIPE, recipe, unseen
from tests.training.corpus import ALLOWED, is_held_out
from toolkit.embedded import load_prompts, model_path
from toolkit.profile_folder.store import read
from toolkit.settings.load import load_deployment


def test_a_recipe_with_another_model_names_it_and_its_profile(tmp_path: Path) -> None:
    shipped, mine = load_deployment(RECIPE), load_deployment(recipe(tmp_path))
    assert mine.model == shipped.model
    assert mine.router.profile == shipped.router.profile
    other = load_deployment(recipe(tmp_path, Path(model_path()), PROFILE))
    assert other.model.path == str(model_path())
    assert other.router.profile == str(PROFILE)
    assert other.decode == shipped.decode


def test_prompts_that_a_profile_was_fitted_to_are_not_played() -> None:
    profile, arrays = read(PROFILE)
    rows = zip(profile.requests, arrays["held_out"], strict=True)
    fitted = {request.id for request, held_out in rows if not held_out}
    played = {prompt.id for prompt in unseen()}
    assert played | fitted == {prompt.id for prompt in load_prompts()}
    assert not played & fitted


def test_of_a_file_are_played_what_training_has_not_seen_in_cells_that_suffice(
    tmp_path: Path,
) -> None:
    trained = sorted(ALLOWED)[0]
    texts = [text for text in (f"text {n}" for n in range(400)) if not is_held_out(text)]
    cells = [("few", LEAST_PROMPTS - 1, "elsewhere"), ("many", LEAST_PROMPTS, "elsewhere")]
    lines = []
    for domain, count, source in [*cells, ("trained", 20, trained)]:
        for _ in range(count):
            row = {"text": texts.pop(), "domain": domain, "language": "en", "source": source}
            lines.append(json.dumps(row))
    lines.append(json.dumps({"text": "long " * 500, "domain": "many", "language": "en"}))
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(lines))
    found = unseen(file)
    assert [prompt.domain for prompt in found] == ["many"] * LEAST_PROMPTS
    assert all(len(prompt.text) < 100 for prompt in found)
