"""The study of warm starts: curves are averaged over places, and its claim is about cold's best."""

from benchmarks.training import warm_start as study


def test_a_start_is_as_good_once_its_mean_reaches_the_best_of_the_cold_mean() -> None:
    curves = {
        "cold": [[0.1, 0.2, 0.3, 0.3, 0.4, 0.6], [0.1, 0.4, 0.5, 0.5, 0.6, 0.4]],  # its mean is best at the last two
        "1": [[0.3, 0.5, 0.4, 0.4, 0.4, 0.4], [0.5, 0.7, 0.1, 0.1, 0.1, 0.1]],
        "0.5": [[0.4, 0.4, 0.4, 0.4, 0.4, 0.4]] * 2,
    }
    found = study.figures_of(curves)
    assert {start: each["epochs"] for start, each in found.items()} == {"cold": 5, "1": 2, "0.5": None}
    assert found["cold"]["curve"] == [0.1, 0.3, 0.4, 0.4, 0.5, 0.5]
    assert (found["1"]["best"], found["1"]["places"]) == (0.6, [0.5, 0.7])


def test_the_claim_is_about_the_default_share() -> None:
    found = {"cold": {"epochs": 9}, f"{study.DEFAULT:g}": {"epochs": 3}}
    (claim,) = study.claims_of({"days": found})
    assert study.claims_of({"days": found}) == {claim: True}
    for epochs in (4, None):
        assert study.claims_of({"days": found | {f"{study.DEFAULT:g}": {"epochs": epochs}}}) == {claim: False}


def test_the_recipe_is_that_of_the_package_without_what_hides_the_model() -> None:
    raw = study.recipe("ml-100k", 7, data={"valid_share": 0.2})
    assert (raw["train"]["epochs"], raw["train"]["batch_size"], raw["data"]["valid_share"]) == (7, 512, 0.2)
    assert (raw["model"]["prior"], raw["model"]["dimension"], raw["data"]["refit"]) == ("off", 64, False)
