"""The profiles that ship with the project are whole and belong to what ships beside them."""

import numpy as np

from toolkit import signatures
from toolkit.embedded import model_path
from toolkit.fingerprint import model_fingerprint
from toolkit.profile_folder.check import problems
from toolkit.profile_folder.store import read
from toolkit.resources import profiles_dir


def test_the_embedded_profile_is_the_embedded_models() -> None:
    profile, _ = read(profiles_dir() / "embedded")
    fingerprint = model_fingerprint(model_path())
    assert problems(profile, fingerprint=fingerprint, decode_workers=2) == []


def test_the_plain_profile_is_whole_and_of_another_model() -> None:
    profile, arrays = read(profiles_dir() / "embedded-plain")
    assert problems(profile, decode_workers=2) == []
    assert problems(profile, fingerprint=model_fingerprint(model_path()), decode_workers=2)
    shipped, own = read(profiles_dir() / "embedded")
    assert {r.id for r in profile.requests} == {r.id for r in shipped.requests}
    assert arrays["held_out"].sum() == own["held_out"].sum()
    assert profile.model.experts == shipped.model.experts


def test_its_centroids_tell_unseen_requests_apart() -> None:
    profile, arrays = read(profiles_dir() / "embedded")
    space = signatures.SignatureSpace(arrays["idf"], profile.rho.mask)
    held = arrays["held_out"] == 1
    found = space.signatures(arrays["prefill_counts"][held]) @ arrays["centroids"].T
    assert found.shape == (held.sum(), 2)
    near, far = found.max(axis=1), found.min(axis=1)
    assert np.median(near - far) > 0.1
    assert profile.centroids.distinct.clustered is not None
    assert profile.centroids.distinct.clustered < 0.9 * profile.centroids.distinct.random
