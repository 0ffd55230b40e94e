"""What a report finds wrong: each finding on a case made for it, and none on a sound one."""

import numpy as np
import polars as pl
import pytest

from pipelines.evaluation.findings import NAMES, Finding, checks, effective_rank, look

USERS, ITEMS, K, D = 400, 1_000, 10, 16


def sound() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    lists = np.stack([generator.choice(ITEMS, K, replace=False) for _ in range(USERS)])
    return {
        "exposure": np.bincount(lists.ravel(), minlength=ITEMS),
        "vectors": generator.normal(size=(ITEMS, D)).astype(np.float32),
        "queries": generator.normal(size=(USERS, D)).astype(np.float32),
    }


def found(titles: list[str] | None = None, **changes: np.ndarray) -> list[Finding]:
    given = sound() | changes
    items = pl.DataFrame({"item_id": [f"i{item}" for item in range(ITEMS)]} | ({"title": titles} if titles else {}))
    return look(checks(given["exposure"], USERS, K, {"item": given["vectors"], "query": given["queries"]}, items))


def names(**changes: np.ndarray) -> list[str]:
    of_rules = [each.name for each in found(**changes)]
    assert set(of_rules) <= set(NAMES), "a rule of a gate could not name it"
    return of_rules


def test_a_sound_model_has_none() -> None:
    assert names() == []


def test_the_same_list_for_everybody() -> None:
    exposure = np.zeros(ITEMS, np.int64)
    exposure[:K] = USERS
    assert names(exposure=exposure) == ["one list for all", "items never recommended"]


def test_of_a_few_lists_the_same_items_say_nothing() -> None:
    exposure = np.zeros(ITEMS, np.int64)
    exposure[:K] = 19
    items = pl.DataFrame({"item_id": [f"i{item}" for item in range(ITEMS)]})
    for users in (19, 20):
        told = {each.name for each in look(checks(exposure, users, K, {}, items))}
        assert ("one list for all" in told) == (users == 20)
        assert ("few to judge by" in told) == (users == 19)


def test_one_item_in_most_lists() -> None:
    exposure = sound()["exposure"]
    exposure[7] = int(0.6 * USERS)
    assert names(exposure=exposure) == ["hub"]
    (hub,) = (each.content() for each in found(exposure=exposure))
    assert hub["item"] == "i7" and hub["text"].endswith("in the first 10 of 60% of the users: 'i7'")
    titles = [f"Title {item}" for item in range(ITEMS)]
    titles[7] = "Red\x1b[31m"
    (hub,) = (each.content() for each in found(titles, exposure=exposure))
    assert hub["item"] == "i7" and hub["text"].endswith(r"of the users: 'Red\x1b[31m (i7)'")


def test_a_finding_of_no_item_names_none() -> None:
    line = np.ones((ITEMS, D), np.float32)
    assert all("item" not in each.content() for each in found(vectors=line))


def test_vectors_on_a_line() -> None:
    line = np.outer(np.arange(1, ITEMS + 1), np.ones(D)).astype(np.float32)
    assert names(vectors=line) == ["item vectors collapsed"]
    assert names(queries=line[:USERS]) == ["query vectors collapsed"]


def test_a_vector_far_longer_than_the_rest() -> None:
    vectors = sound()["vectors"]
    vectors[3] *= 100
    assert "item norms" in names(vectors=vectors)


def test_items_that_cannot_be_told_apart() -> None:
    vectors = sound()["vectors"]
    vectors[:5] = vectors[5:10]
    assert names(vectors=vectors) == []  # ten of a thousand: no more than 1 %
    vectors[:50] = vectors[50:100]
    (duplicates,) = found(vectors=vectors)
    assert (duplicates.name, duplicates.value) == ("item duplicates", pytest.approx(0.1))
    assert duplicates.text.startswith("10% of the item vectors equal another one")


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_the_effective_rank_of_equal_directions_is_their_number(rank: int) -> None:
    # +-e_1 .. +-e_rank: centred, with equal singular values.
    vectors = np.concatenate([np.eye(D)[:rank], -np.eye(D)[:rank]]).astype(np.float32)
    assert effective_rank(vectors) == pytest.approx(rank)


def test_equal_vectors_have_rank_one() -> None:
    assert effective_rank(np.ones((5, D), np.float32)) == 1.0
