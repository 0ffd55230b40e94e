"""Profiles in a bundle: each user's own come back, equal ones are stored once, damaged or wrong ones are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.bundle.profiles import Profiles, write_profiles
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from tests.serving.bundle.test_reader_and_writer import vouch
from tests.support.worlds.serving import FEATURES, USERS, write_world

words = st.text('a"\\\n\x00é€😀', max_size=5)
one_profile = st.fixed_dictionaries(
    {},
    optional={
        "country": words,
        "age": st.floats(allow_nan=False, allow_infinity=False, width=32),
        "tags": st.lists(words, max_size=3),
    },
)


@settings(max_examples=60)
@given(profiles=st.lists(one_profile, max_size=12))
def test_each_user_gets_their_own_back(
    tmp_path_factory: pytest.TempPathFactory, profiles: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("profiles")
    write_profiles(folder, profiles)
    opened = Profiles.open(folder, len(profiles))
    opened.refuse_wrong(FEATURES, folder)
    assert [opened[row] for row in range(len(profiles))] == list(opened) == opened[:] == profiles


def test_equal_profiles_are_stored_once_and_numbers_in_few_digits(tmp_path: Path) -> None:
    written = [{"age": np.float32(0.1), "country": f"g{user % 2}"} for user in range(1_000)]
    write_profiles(tmp_path, written)
    distinct = ['{"age":0.1,"country":"g0"}', '{"age":0.1,"country":"g1"}']
    assert np.load(tmp_path / "query_profile_bytes.npy").tobytes().decode() == "".join(distinct)
    assert [json.loads(text) for text in distinct] * 500 == list(Profiles.open(tmp_path, 1_000))


def save(name: str, values: list[int], dtype: type[np.generic]) -> Any:
    return lambda bundle: np.save(bundle / f"query_profile_{name}.npy", np.array(values, dtype))


TEXT = b'{"age":1.0}'
DAMAGES = {
    "no rows": (lambda bundle: (bundle / "query_profile_rows.npy").unlink(), "query_profile_rows.npy: missing"),
    "too few rows": (save("rows", [0], np.int32), r"query_profile_rows.npy: must be \[12\], is \[1\]"),
    "a row beyond": (save("rows", [1] * USERS, np.int32), r"query_profile_rows.npy: must lie in 0\.\.0"),
    "a row below": (save("rows", [-1] * USERS, np.int32), r"query_profile_rows.npy: must lie in 0\.\.0"),
    "no offsets": (save("offsets", [], np.int64), "query_profile_offsets.npy: must rise from 0 to the 11 bytes"),
    "falling offsets": (save("offsets", [0, 12, 11], np.int64), "query_profile_offsets.npy: must rise"),
    "not JSON": (save("bytes", [*TEXT[:-1], 0], np.uint8), "query_profile_bytes.npy: profile 0: "),
    "no object": (save("bytes", [*b"[1.0000000]"], np.uint8), "query_profile_bytes.npy: profile 0: "),
    "no such feature": (save("bytes", [*b'{"agf":1.0}'], np.uint8), "profile 0: features.agf: no such feature"),
    "of another type": (save("bytes", [*b'{"age":"x"}'], np.uint8), "profile 0: features.age: must be a finite number"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_profiles_are_refused(tmp_path: Path, name: str) -> None:
    write_world(tmp_path / "bundle", profiles=[{"age": 1.0}] * USERS)
    spoil, said = DAMAGES[name]
    spoil(tmp_path / "bundle")
    if name != "no rows":
        vouch(tmp_path / "bundle")
    with pytest.raises(BundleError, match=said):
        Bundle.open(tmp_path / "bundle")


def test_profiles_that_the_manifest_does_not_name_are_refused(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    write_profiles(tmp_path / "bundle", [{"age": 1.0}] * USERS)
    with pytest.raises(BundleError, match=r"query_profile_bytes\.npy: not in the manifest"):
        Bundle.open(tmp_path / "bundle")
