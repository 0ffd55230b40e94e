"""The measurements of losses on synthetic worlds: their worlds, their store, their page. Tiny; no time is asserted."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import pages
from benchmarks.harness.array_task import ArrayTask
from benchmarks.harness.machine import load
from benchmarks.harness.machine import results as committed
from benchmarks.harness.measured_code import OLD
from benchmarks.harness.plots import PLOTS, figure, line
from benchmarks.harness.resumable import Store
from benchmarks.losses import known_world, nce_samples, nce_speed, parts, world_tables
from benchmarks.losses import page as losses_page
from benchmarks.losses.worlds import World, attained, divergence, log_likelihood, low_rank_world
from tests.support.pages.drawings import assert_same_drawing

OWN = ("losses_known", "losses_nce", "losses_nce_speed", "losses_q")
TWO = World(np.log([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]))


def test_a_finished_run_is_read_and_not_made_again(tmp_path: Path) -> None:
    made = []

    def run() -> dict[str, Any]:
        made.append(1)
        return {"kl": (0.5, 0.25)}

    assert Store(tmp_path / "new").run({"k": 5, "loss": "nce"}, run) == {"kl": [0.5, 0.25]}
    assert Store(tmp_path / "new").run({"loss": "nce", "k": 5}, run) == {"kl": [0.5, 0.25]}
    assert len(made) == 1
    Store(tmp_path / "new").run({"loss": "nce", "k": 25}, run)
    assert len(made) == 2


@pytest.mark.parametrize("broken", [{"kl": float("nan")}, {"kl": object()}])
def test_a_run_that_fails_leaves_nothing_that_a_later_one_would_read(tmp_path: Path, broken: dict[str, Any]) -> None:
    store = Store(tmp_path)
    with pytest.raises((ValueError, TypeError)):
        store.run({"k": 5}, lambda: broken)
    with pytest.raises(KeyboardInterrupt):
        store.run({"k": 5}, _interrupted)
    assert not store.has({"k": 5})
    assert list(tmp_path.iterdir()) == []


def _interrupted() -> dict[str, Any]:
    raise KeyboardInterrupt


def test_a_plot_is_the_same_file_for_the_same_figures(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with figure(name, 2, tmp_path) as (left, right):
            left.plot([1, 2], [3, 4], **line(0), label="a")
            left.legend()
            right.plot([1, 2], [3, 5], **line(1))
    one, two = ((tmp_path / f"{name}.svg").read_bytes() for name in ("one", "two"))
    assert one == two
    assert b"<dc:date>" not in one


def test_a_world_is_a_distribution_and_its_draws_follow_it() -> None:
    world = low_rank_world(3, 20, rank=2, deviation=1.0, seed=4)
    np.testing.assert_allclose(np.exp(world.log_p).sum(axis=1), 1.0)
    assert np.all(np.diff(world.popularity) <= 0)
    assert np.all(np.diff(world.counts) <= 0)
    users, items = world.draw(60_000, seed=1)
    expected = 20_000 * np.exp(world.log_p)
    drawn = np.zeros((3, 20))
    np.add.at(drawn, (users, items), 1)
    # Five standard deviations of a count.
    assert np.all(np.abs(drawn - expected) < 5 * np.sqrt(expected))


def test_divergence_and_the_other_measures_by_hand() -> None:
    constant = np.array([[3.0], [-2.0]])
    assert divergence(TWO, (TWO.log_p + constant).astype(np.float32)) == pytest.approx(0.0, abs=1e-6)
    even = np.zeros((2, 3), np.float32)
    # KL to the uniform distribution: log 3 less the entropy.
    entropy = [-(0.5 * np.log(0.5) + 0.5 * np.log(0.25)), -(0.8 * np.log(0.8) + 0.2 * np.log(0.1))]
    assert divergence(TWO, even) == pytest.approx(np.log(3) - np.mean(entropy), abs=1e-6)
    assert log_likelihood(even, np.array([0, 1]), np.array([2, 0])) == pytest.approx(-np.log(3), abs=1e-6)
    last = np.array([[0, 1, 2], [0, 1, 2]], np.float32)
    assert attained(TWO, last, 1) == pytest.approx((0.25 / 0.5 + 0.1 / 0.8) / 2)
    assert attained(TWO, last, 2) == pytest.approx((0.5 / 0.75 + 0.2 / 0.9) / 2)


def test_the_task_of_arrays_learns_what_full_softmax_must() -> None:
    users, items = (part.ravel() for part in np.indices((2, 3)))
    task = ArrayTask(2, TWO.counts, 3, 6, {"name": "full_softmax"}, None, identity=True)
    weight = np.exp(TWO.log_p).ravel().astype(np.float32)
    task.reset(1, 0.1)
    # At equal logits the loss is log N, and weights only share it out.
    assert float(task.step(task.batch(users, items, (1, 0), weight))) == pytest.approx(np.log(3), abs=1e-5)
    for step in range(200):
        task.step(task.batch(users, items, (1, step), weight))
    assert divergence(TWO, task.scores()) < 1e-4
    before = task.scores()
    task.reset(1, 0.1)
    assert np.abs(task.scores()).max() == 0.0 != np.abs(before).max()


def test_closed_forms_by_hand() -> None:
    q = TWO.counts / TWO.counts.sum()
    np.testing.assert_allclose(q, [0.65, 0.175, 0.175], rtol=1e-6)
    for user, item in np.ndindex(2, 3):
        p = np.exp(TWO.log_p[user, item])
        assert known_world.closed_form(TWO, "nce", 7)[user, item] == pytest.approx(np.log(p))
        assert known_world.closed_form(TWO, "neg", 7)[user, item] == pytest.approx(np.log(p / (7 * q[item])))
        assert known_world.closed_form(TWO, "uncorrected softmax", 7)[user, item] == pytest.approx(np.log(p / q[item]))
    shifted = TWO.log_p + np.array([[1.0], [2.0]])
    assert known_world.distance(TWO, "nce", 7, shifted) == pytest.approx(0.0)
    assert known_world.distance(TWO, "neg", 7, known_world.closed_form(TWO, "neg", 7) + 2.0) == pytest.approx(2.0)


@pytest.mark.parametrize("loss", ["nce", "neg"])
def test_a_short_run_ends_near_its_closed_form_and_far_from_another(loss: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(known_world, "SEEDS", (1, 2))
    run = known_world.train(TWO, loss, 25, 800)
    assert max(run["error"]) < 0.2
    assert len(run["path"]) == known_world.LOOKS
    other = {"nce": "uncorrected softmax", "neg": "nce"}[loss]
    forms = (known_world.closed_form(TWO, name, 25) for name in (loss, other))
    assert known_world.distance(TWO, loss, 25, np.subtract(*forms) + known_world.closed_form(TWO, loss, 25)) > 0.5


def test_the_plain_full_softmax_is_the_formula() -> None:
    task = ArrayTask(2, TWO.counts, 4, 3, {"name": "full_softmax"}, None)
    task.reset(3, 0.1)
    users, items = np.array([0, 1, 1]), np.array([2, 0, 1])
    scores = np.concatenate([np.zeros((2, 1)), task.scores()], axis=1)  # row 0 of a table is that of missing values
    expected = np.mean([np.log(np.exp(scores[u]).sum()) - scores[u, i + 1] for u, i in zip(users, items, strict=True)])
    assert float(nce_speed.plain_step(task)(task.batch(users, items, (1, 0)))) == pytest.approx(expected, abs=1e-5)


def test_a_table_shows_its_figures() -> None:
    cell = {"error": [0.1, 0.2, 0.3], "spread": 0.05}
    table = world_tables.known({"table": {"nce": {"5": cell}}, "settings": {"forms": {"nce": "log P"}}})
    assert table.splitlines() == [
        "| loss | closed form | k = 5 |",
        "| --- | --- | --- |",
        "| nce | log P | 0.200 (0.050) |",
    ]


def test_the_time_to_a_quality_is_steps_times_a_steps_time() -> None:
    def path(*kl: float) -> list[dict[str, float]]:
        return [{"step": 100 * 2**n, "kl": value, "recall": 0.5} for n, value in enumerate(kl)]

    quality = {
        "full_softmax": {"rate": 0.01, "path": path(0.9, 0.4)},
        "nce k=5": {"rate": 0.03, "path": path(2.0, 0.5, 0.3, 0.2)},
    }
    times = {"items": 10, "batch": 4, "dimension": 2, "milliseconds": {"full_softmax": 20.0, "nce k=5": 5.0}}
    result = {"quality": {"10": quality}, "settings": {"batch": 4, "dimension": 2}}
    rows = [
        [cell.strip() for cell in row.split("|")]
        for row in world_tables.quality(result, {"speed": [times]}).splitlines()
    ]
    # Full softmax: 200 steps of 20 ms. NCE: KL 0.5 after 200 steps; 800 steps in those 4 s; below 0.4 from step 400 on.
    assert rows[2][4:8] == ["20.0", "0.400, 50.0 %", "0.400, 50.0 % (200)", "4.0 s"]
    assert rows[3][4:8] == ["5.0", "0.500, 50.0 %", "0.200, 50.0 % (800)", "2.0 s"]


def test_gaps_are_taken_after_as_many_steps_as_full_softmax_was_given() -> None:
    def path(*looks: tuple[int, float, float]) -> dict[str, Any]:
        return {"path": [{"step": step, "kl": kl, "recall": recall} for step, kl, recall in looks]}

    found = {"full_softmax": path((50, 0.9, 0.6), (100, 0.5, 0.8)), "nce": path((100, 0.75, 0.7), (200, 0.1, 0.9))}
    assert nce_samples.gaps_at_equal_steps(found)["nce"] == {"kl": 0.25, "recall": 0.1}


def test_an_unknown_part_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parts.main(["noise"])
    assert "unknown part noise; the parts are known, nce" in capsys.readouterr().err


def test_a_failed_claim_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    for holds, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(parts, "run", lambda *_, holds=holds: {"claims": {"it works": holds}})
        assert parts.main(["known"]) == code


@pytest.mark.parametrize("name", OWN)
def test_every_committed_claim_holds(name: str) -> None:
    claims = load(name)["claims"]
    assert claims
    assert [claim for claim, holds in claims.items() if not holds] == []


def test_the_page_shows_the_committed_results() -> None:
    # Which of them are old changes with every commit.
    page = losses_page.PAGE.read_text(encoding="utf-8").replace(OLD, "")
    assert losses_page.page_with_tables(page, marks=False) == page
    shown = {mark["name"] for mark in losses_page.BLOCK.finditer(page)}
    assert [name for name, (_, _, results) in losses_page.TABLES.items() if name not in shown and _there(results)] == []


@pytest.mark.parametrize("old", [True, False])
def test_a_dagger_is_at_a_table_whose_code_has_changed_since(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "is_old", lambda name: old and name == "losses_nce_speed")
    # The table "nce" reads two results, of which one is old.
    assert ["† " in losses_page.table(name) for name in ("known", "nce", "nce-speed")] == [False, old, old]


def _there(results: tuple[str, ...]) -> bool:
    return set(results) <= committed().keys()


def test_every_plot_of_the_page_is_there_and_drawn_from_the_committed_results(tmp_path: Path) -> None:
    page = losses_page.PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"\]\(\.\./plots/([\w-]+)\.svg\)", page)
    assert set(losses_page.DRAWN) <= set(shown)
    assert [name for name in shown if not (PLOTS / f"{name}.svg").exists()] == []
    losses_page.draw(tmp_path)
    for name in losses_page.DRAWN:
        assert_same_drawing(tmp_path / f"{name}.svg", PLOTS / f"{name}.svg")
