"""Samplers one by one: what they draw from, their Q, their state, and that they run anywhere."""

import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter

from tests.support.gpu_kernels import problems
from tests.support.paths import ROOT
from towers.config.samplers import SAMPLERS, SamplerConfig
from towers.errors import ConfigError
from towers.ops.stateless_random import bits, fold, round_seed, uniforms
from towers.samplers.distinct import Plan, distinct_count, draw_distinct, draws_until, plan
from towers.samplers.duplicates import first_copies, running_count
from towers.samplers.learned import LearnedUnigramNoise
from towers.samplers.noises import LogUniformNoise, UniformNoise, alias_table
from towers.samplers.registry import build_sampler
from towers.samplers.sampler import NegativeSampler, SampledCandidates

SIZE, BATCH, COUNT = 300, 16, 40
COUNTS = np.maximum(1, 4_000 // (np.arange(SIZE) + 3)).astype(np.int64)
DRAWING = ("uniform", "log_uniform", "learned_unigram", "unigram")
MIXTURE = {
    "name": "mixed",
    "parts": (
        {"name": "uniform", "negatives": 24, "distinct": True},
        {"name": "in_batch", "frequencies": "learned"},
        {"name": "log_uniform", "negatives": 32},
        {"name": "learned_unigram", "negatives": 8, "distinct": True},
        {"name": "unigram", "negatives": 16},
    ),
}
EVERY: list[dict[str, Any]] = [
    {"name": "in_batch"},
    {"name": "in_batch", "distinct": True},
    {"name": "in_batch", "frequencies": "learned"},
    *({"name": name, "negatives": COUNT, "distinct": distinct} for name in DRAWING for distinct in (False, True)),
    {"name": "log_uniform", "negatives": SIZE, "distinct": True},
    MIXTURE,
]
NAMES = [f"{one['name']}{'-distinct' if one.get('distinct') else ''}{one.get('frequencies', '')}" for one in EVERY]
Ints = NDArray[np.int64]


def built(counts: Ints = COUNTS, seen: int = 1_000, **section: Any) -> NegativeSampler:
    return build_sampler(TypeAdapter(SamplerConfig).validate_python(section), counts, BATCH, seen)


def batch(number: int, size: int = SIZE, rows: int = BATCH) -> tf.Tensor:
    return tf.constant(np.random.default_rng(number).integers(0, size, (rows, 2)), tf.int64)


def run(draw: Any, steps: range, size: int = SIZE) -> list[SampledCandidates]:
    return [draw(batch(step, size), tf.constant([11, step])) for step in steps]


def equal(one: list[SampledCandidates], other: list[SampledCandidates]) -> bool:
    return all(np.array_equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def probabilities(name: str, counts: Ints, seen: Ints | None = None) -> NDArray[np.float64]:
    """q of the specification's table, in float64."""
    c = np.arange(len(counts), dtype=np.float64)
    formula = {
        "uniform": np.full(len(counts), 1 / len(counts)),
        "log_uniform": np.log1p(1 / (c + 1)) / np.log(len(counts) + 1),
        "unigram": counts**0.75 / (counts**0.75).sum(),
        "in_batch": counts / counts.sum(),
        "learned_unigram": 1.0 + (np.zeros(len(counts)) if seen is None else np.bincount(seen, minlength=len(counts))),
    }[name]
    return np.asarray(formula / formula.sum(), np.float64)


# What is drawn, and its Q


@pytest.mark.parametrize("name", DRAWING)
def test_log_q_with_replacement_is_log_of_k_q(name: str) -> None:
    sampler = built(name=name, negatives=COUNT)
    before = np.concatenate([batch(step)[:, 0].numpy() for step in range(2)])
    drawn = run(tf.function(sampler.draw, autograph=False), range(3))[-1]
    q = probabilities(name, COUNTS, before)
    np.testing.assert_allclose(drawn.log_q, np.log(COUNT * q[drawn.item.numpy()]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(drawn.log_q_positive, np.log(COUNT * q[batch(2).numpy()]), rtol=0, atol=1e-6)
    assert drawn.log_q.dtype == drawn.log_q_positive.dtype == tf.float32 and drawn.item.dtype == tf.int64
    assert drawn.item.shape == (COUNT,) and drawn.log_q_positive.shape == (BATCH, 2) and np.all(drawn.mask)


@pytest.mark.parametrize("name", DRAWING)
def test_distinct_draws_are_the_first_k_of_the_series_and_q_counts_its_length(name: str) -> None:
    sampler = built(name=name, negatives=100, distinct=True)
    drawn = sampler.draw(batch(0), tf.constant([11, 0]))
    chosen, seed = sampler._plan, fold(tf.constant([11, 0], tf.int64), name, 0)
    assert not chosen.race
    # The slow way: one after another, in the state of before the draw.
    fresh = built(name=name, negatives=100, distinct=True).noise
    found: list[int] = []
    tries = 0
    for number in range(20):
        chunk = fresh.draw(chosen.first if number == 0 else chosen.more, round_seed(seed, number)).numpy()
        for item in chunk:
            if len(found) < 100:
                tries += 1
                if item not in found:
                    found.append(int(item))
    assert drawn.item.numpy().tolist() == found
    q = probabilities(name, COUNTS)
    log_q = np.log(-np.expm1(tries * np.log1p(-q)))
    np.testing.assert_allclose(drawn.log_q, log_q[found], rtol=0, atol=2e-6)
    np.testing.assert_allclose(drawn.log_q_positive, log_q[batch(0).numpy()], rtol=0, atol=2e-6)


def test_further_rounds_go_on_with_the_series() -> None:
    noise, seed = LogUniformNoise(5_000), tf.constant([3, 4], tf.int64)
    item, tries = tf.function(
        lambda: draw_distinct(noise, 300, Plan(5_000, 300, 16, race=False), seed), autograph=False
    )()
    further = tf.function(lambda number: noise.draw(16, round_seed(seed, number)), autograph=False)
    rounds = [further(number).numpy() for number in tf.range(1, 200)]
    series = np.concatenate([noise.draw(300, seed).numpy(), *rounds])
    _, first = np.unique(series, return_index=True)
    expected = np.sort(first)[:300]
    np.testing.assert_array_equal(item, series[expected])
    assert int(tries) == expected[-1] + 1 and int(tries) > 400


FIRST = [
    tf.function(lambda series, size=size: first_copies(series, size), autograph=False) for size in (10_000_000, 2_000)
]


@given(st.lists(st.integers(0, 12), min_size=24, max_size=24), st.lists(st.integers(0, 6), min_size=24, max_size=24))
@settings(max_examples=60)
def test_first_copies_though_all_share_few_slots(low: list[int], high: list[int]) -> None:
    # 24 elements get 256 slots; what differs above the low bits meets in one.
    series = np.array(low, np.int64) // 4 + 256 * np.array(high, np.int64)
    first = np.zeros(24, bool)
    first[np.unique(series, return_index=True)[1]] = True
    for found in FIRST:
        np.testing.assert_array_equal(found(tf.constant(series)), first)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 1_000])
def test_running_count(length: int) -> None:
    mask = np.random.default_rng(length).random(length) < 0.6
    np.testing.assert_array_equal(running_count(tf.constant(mask)), np.cumsum(mask))


def test_in_batch_gives_the_first_positives_and_counts_copies_as_asked() -> None:
    positives = tf.constant([[7, 1], [2, 7], [7, 3], [2, 2]], tf.int64)
    q = COUNTS / COUNTS.sum()
    kept = built(name="in_batch").draw(positives, tf.constant([0, 0]))
    np.testing.assert_array_equal(kept.item, [7, 2, 7, 2])
    np.testing.assert_array_equal(kept.mask, [True] * 4)
    np.testing.assert_allclose(kept.log_q, np.log(4 * q[[7, 2, 7, 2]]), rtol=1e-6)
    np.testing.assert_allclose(kept.log_q_positive, np.log(4 * q[positives.numpy()]), rtol=1e-6)
    once = built(name="in_batch", distinct=True).draw(positives, tf.constant([0, 0]))
    np.testing.assert_array_equal(once.mask, [True, True, False, False])
    np.testing.assert_allclose(once.log_q, np.log(1 - (1 - q[[7, 2, 7, 2]]) ** 4), rtol=1e-6)
    learned = built(name="in_batch", frequencies="learned")
    learned.draw(positives, tf.constant([0, 0]))
    np.testing.assert_allclose(
        learned.draw(positives, tf.constant([0, 1])).log_q, np.log(4 * 3 / (SIZE + 4) * np.ones(4)), rtol=1e-6
    )


def test_q_of_a_mixture_is_the_sum_of_its_parts_for_every_candidate() -> None:
    parts = ({"name": "uniform", "negatives": 24}, {"name": "in_batch"}, {"name": "unigram", "negatives": 10})
    drawn = built(name="mixed", parts=parts).draw(batch(0), tf.constant([1, 2]))
    q = BATCH * probabilities("in_batch", COUNTS) + 24 / SIZE + 10 * probabilities("unigram", COUNTS)
    np.testing.assert_array_equal(drawn.item[:BATCH], batch(0)[:, 0])
    np.testing.assert_allclose(drawn.log_q, np.log(q[drawn.item.numpy()]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(drawn.log_q_positive, np.log(q[batch(0).numpy()]), rtol=0, atol=1e-6)
    assert q.sum() == pytest.approx(BATCH + 34)


@given(
    counts=st.lists(st.integers(1, 10**6), min_size=1, max_size=60).map(lambda c: np.array(sorted(c)[::-1], np.int64)),
    share=st.floats(0.01, 1),
    name=st.sampled_from(DRAWING),
    seed=st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)),
)
@settings(max_examples=40)
def test_any_counts_any_k(counts: Ints, share: float, name: str, seed: tuple[int, int]) -> None:
    size = len(counts)
    k = max(1, round(share * size))
    everyone = tf.constant(np.arange(size)[:, None], tf.int64)
    drawn = built(counts, name=name, negatives=k, distinct=True).draw(everyone, tf.constant(seed))
    assert len(set(drawn.item.numpy().tolist())) == k and min(drawn.item) >= 0 and max(drawn.item) < size
    assert np.all(drawn.log_q.numpy() <= 0) and np.all(np.isfinite(drawn.log_q_positive))
    free = built(counts, name=name, negatives=7).draw(everyone, tf.constant(seed))
    assert np.exp(free.log_q_positive.numpy().astype(np.float64)).sum() == pytest.approx(7, rel=1e-5)
    assert min(free.item) >= 0 and max(free.item) < size


@given(st.lists(st.floats(1e-12, 1), min_size=1, max_size=80))
@settings(max_examples=60)
def test_an_alias_table_holds_its_distribution(weights: list[float]) -> None:
    p = np.array(weights) / np.sum(weights)
    keep, alias = alias_table(p)
    held = keep.copy()
    np.add.at(held, alias, 1 - keep)
    np.testing.assert_allclose(held / len(p), p, rtol=1e-9, atol=1e-15)
    assert keep.min() >= 0 and keep.max() <= 1


def test_alike_weights_that_rounding_puts_below_their_share_keep_their_columns() -> None:
    p = np.full(5, np.nextafter(0.2, 0))
    assert (p * 5 < 1).all()
    keep, alias = alias_table(p)
    assert (keep.tolist(), alias.tolist()) == ([1.0] * 5, list(range(5)))


# Precision


@pytest.mark.parametrize("tries", [1.0, 8_192.0, 1e6, 1e12])
def test_q_of_distinct_draws_keeps_its_precision(tries: float) -> None:
    q = np.array([1e-12, 1e-9, 1e-6, 1e-3, 0.5, 0.999, 1.0], np.float32)
    with np.errstate(divide="ignore"):
        expected = -np.expm1(tries * np.log1p(-q.astype(np.longdouble)))
    np.testing.assert_allclose(distinct_count(tf.constant(q), tf.constant(tries, tf.float32)), expected, rtol=1e-6)


def test_the_tail_of_ten_million_is_drawn_and_its_log_q_is_right() -> None:
    size = 10_000_000
    noise = LogUniformNoise(size)
    item = np.array([0, 1, 100, 2**20, 2**24 - 12_345_678, size - 2, size - 1])
    exact = np.log1p(1 / (item + 1).astype(np.longdouble)) / np.log1p(np.longdouble(size))
    np.testing.assert_allclose(noise.probability(tf.constant(item, tf.int64)), exact, rtol=5e-7)
    drawn = noise.draw(1_000_000, tf.constant([1, 2], tf.int64)).numpy()
    tail = drawn[drawn >= size // 2]
    # In float32 one uniform in [0, 1) covers a run of items this long near the end.
    assert len(np.unique(tail)) > 0.98 * len(tail) and drawn.max() < size
    assert len(np.unique(tail % 16)) == 16


def test_the_ends_of_the_uniforms_are_the_first_and_the_last_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "towers.samplers.noises.uniforms",
        lambda count, seed, end: tf.constant([0.0, (1 - 2**-53) * end], tf.float64),
    )
    for size in (1, 2, 3, 300, 2**24 - 1, 10_000_000, 10**9 - 1, 2**32):
        assert LogUniformNoise(size).draw(2, tf.constant([0, 0])).numpy().tolist() == [0, size - 1]


def test_uniforms_have_53_bits_and_streams_differ() -> None:
    seed = tf.constant([5, 6], tf.int64)
    u = uniforms(1_000, seed, 3.0).numpy() * 2**53 / 3
    assert u.min() >= 0 and u.max() < 2**53 and len({int(x) % 4 for x in u}) == 4
    streams = [fold(seed, name, part) for name in DRAWING for part in range(3)]
    streams += [round_seed(streams[0], number) for number in range(1, 4)]
    firsts = {tuple(bits(4, one).numpy().tolist()) for one in streams}
    assert len(firsts) == len(streams)


def test_a_stream_is_named_by_a_checksum() -> None:
    """Of the name, in the upper half of the first word: Python's own `hash` would differ from process to process."""
    seed = tf.constant([5, 6], tf.int64)
    for name in DRAWING:
        (first, low), (part, below) = (divmod(int(word), 2**32) for word in fold(seed, name, 3) - seed)
        assert (first % 2**32, low, part, below) == (zlib.crc32(name.encode()), 0, 3, 0)


# Learned counts


def test_learned_unigram_counts_after_it_draws_and_forgets_what_leaves_its_list() -> None:
    noise = LearnedUnigramNoise(5, capacity=6)
    held: list[int] = []
    for step in range(8):
        item = np.random.default_rng(step).integers(0, 5, 4)
        noise.learn(tf.constant(item, tf.int64))
        held = (held + item.tolist())[-6:]
        counts = 1 + np.bincount(held, minlength=5)
        np.testing.assert_array_equal(noise.learned.counts, counts)
        np.testing.assert_allclose(noise.probability(tf.range(5, dtype=tf.int64)), counts / counts.sum(), rtol=1e-6)
        # Its numbers, one by one, give each item as often as its count says.
        total = int(noise.learned.total)
        every = [number if number < 5 else int(noise.seen[number - 5]) for number in range(total)]
        np.testing.assert_array_equal(np.bincount(every, minlength=5), counts)
    with pytest.raises(ValueError, match="7 positives does not fit a list of 6"):
        noise.learn(tf.zeros([7], tf.int64))


def test_learned_counts_pass_what_float32_can_count() -> None:
    sampler = built(name="in_batch", frequencies="learned")
    sampler.learned.counts.assign(np.full(SIZE, 2**24, np.int64))
    sampler.draw(tf.zeros([BATCH, 1], tf.int64), tf.constant([0, 0]))
    assert int(sampler.learned.counts[0]) == 2**24 + BATCH


@pytest.mark.parametrize("section", EVERY, ids=NAMES)
def test_a_sampler_that_counts_says_so(section: dict[str, Any]) -> None:
    sampler = built(**section)
    before = [variable.numpy() for variable in sampler.variables]
    sampler.draw(batch(1), tf.constant([0, 0]))
    changed = any(np.any(old != new.numpy()) for old, new in zip(before, sampler.variables, strict=True))
    assert sampler.learns == changed


def test_each_part_of_a_mixture_starts_from_what_it_learned_before() -> None:
    sampler = built(
        np.ones(4, np.int64),
        name="mixed",
        parts=({"name": "in_batch", "frequencies": "learned"}, {"name": "learned_unigram", "negatives": 2}),
    )
    counts, noise = sampler.parts[0].learned, sampler.parts[1].noise
    earlier = {
        counts.counts.ref(): np.array([9, 5, 1, 3, 2]),
        noise.seen.ref(): np.array([4, 0, 3, 3], np.uint32),  # six positives: the newest are 4 and 0
        noise.position.ref(): np.array(6),
    }
    # Item 1 is new, and what were 2 and 4 are gone.
    sampler.warm_start(lambda variable: earlier.get(variable.ref()), np.array([3, -1, 0, 1]), 0.5)
    assert counts.counts.numpy().tolist() == [1 + 1, 1, 1 + 4, 1 + 2]
    assert int(counts.total) == 11
    assert noise.seen.numpy()[: int(noise.position)].tolist() == [2]
    assert noise.learned.counts.numpy().tolist() == [1, 1, 2, 1]
    sampler.warm_start(lambda _: None, np.array([3, -1, 0, 1]), 0.5)
    assert int(counts.total) == 11, "an earlier run without counts changes none"


def test_a_checkpoint_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    first = built(**MIXTURE)
    run(first.draw, range(3))
    path = tf.train.Checkpoint(sampler=first).save(str(tmp_path / "state"))
    expected = run(first.draw, range(3, 6))
    second = built(**MIXTURE)
    tf.train.Checkpoint(sampler=second).restore(path).assert_consumed()
    assert equal(run(second.draw, range(3, 6)), expected)
    assert not equal(run(built(**MIXTURE).draw, range(3, 6)), expected)


# Draws depend on seed and state alone


def fingerprint() -> str:
    samplers = [built(**section) for section in (MIXTURE, EVERY[-2])]
    return " ".join(
        str(int(tf.reduce_sum(drawn.item * tf.range(1, drawn.item.shape[0] + 1, dtype=tf.int64))))
        for sampler in samplers
        for drawn in run(sampler.draw, range(2))
    )


@pytest.mark.long
def test_another_process_draws_the_same() -> None:
    # Without Keras, which a sampler has no use for, the process starts in half the time.
    code = """
import sys, towers
sys.modules["keras"] = None
from tests.towers.samplers.test_samplers import fingerprint
print(fingerprint())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == fingerprint().split()


@pytest.mark.parametrize("section", EVERY[3:], ids=NAMES[3:])
def test_a_seed_is_a_draw_and_every_op_of_it_has_a_gpu_kernel(section: dict[str, Any]) -> None:
    draw = tf.function(built(**section).draw, autograph=False)
    again = tf.function(built(**section).draw, autograph=False)
    one, two = run(draw, range(2))
    assert equal([one, two], run(again, range(2)))
    assert not np.array_equal(one.item, two.item)
    assert problems(draw.get_concrete_function(batch(0), tf.constant([1, 2])).graph) == []
    assert draw.experimental_get_tracing_count() == 1


def test_equal_parts_of_a_mixture_draw_from_streams_of_their_own() -> None:
    part = {"name": "uniform", "negatives": 30}
    item = built(name="mixed", parts=(part, part)).draw(batch(0), tf.constant([1, 1])).item.numpy()
    assert not np.array_equal(item[:30], item[30:])


# Running anywhere


@pytest.mark.parametrize("section", EVERY[:3], ids=NAMES[:3])
def test_every_op_of_a_draw_in_the_batch_has_a_gpu_kernel(section: dict[str, Any]) -> None:
    draw = tf.function(built(**section).draw, autograph=False)
    assert problems(draw.get_concrete_function(batch(0), tf.constant([1, 2])).graph) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "section",
    [MIXTURE, {"name": "log_uniform", "negatives": 64, "distinct": True}, EVERY[-2]],
    ids=["mixed", "hashed", "race"],
)
def test_compiled_draws_the_same(section: dict[str, Any]) -> None:
    # 64 draws have 1024 slots, fewer than the items here.
    counts = COUNTS if section["name"] == "mixed" or section["negatives"] == SIZE else np.ones(100_000, np.int64)
    plain = run(tf.function(built(counts, **section).draw, autograph=False), range(2))
    compiled = run(tf.function(built(counts, **section).draw, jit_compile=True, autograph=False), range(2))
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(one.item, other.item)
        np.testing.assert_array_equal(one.mask, other.mask)
        np.testing.assert_allclose(one.log_q, other.log_q, rtol=0, atol=3e-6)
        np.testing.assert_allclose(one.log_q_positive, other.log_q_positive, rtol=0, atol=3e-6)


def test_a_batch_of_unknown_length() -> None:
    signature = [tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([2], tf.int32)]
    # Of 2^20 items copies are found in rounds, of few in a table.
    for counts, section in [
        (COUNTS, EVERY[0]),
        (COUNTS, EVERY[1]),
        (np.ones(1 << 20, np.int64), EVERY[1]),
        (COUNTS, EVERY[2]),
        (COUNTS, EVERY[7]),
    ]:
        free, fixed = built(counts, **section), built(counts, **section)
        draw = tf.function(free.draw, input_signature=signature, autograph=False)
        assert equal(run(draw, range(3)), run(fixed.draw, range(3)))


@pytest.mark.long
def test_autograph_which_keras_applies_to_a_train_step_understands_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(tf.get_logger(), "handle", lambda record: said.append(record.getMessage()))
    draw = tf.function(built(name="uniform", negatives=4).draw)
    draw.get_concrete_function(batch(0), tf.constant([11, 0]))
    assert said == []


# Planning and refusing


@pytest.mark.parametrize(
    ("size", "k", "race"), [(1_000, 10, False), (1_000, 300, False), (1_000, 900, True), (1_000_000, 8_192, False)]
)
def test_the_planned_number_of_draws_is_the_expected_one(size: int, k: int, race: bool) -> None:
    p = probabilities("log_uniform", np.ones(size, np.int64))
    expected = draws_until(p, np.ones(size), k)
    assert np.sum(-np.expm1(expected * np.log1p(-p))) == pytest.approx(k, rel=1e-6)
    chosen = plan(p, k)
    assert chosen.race == race
    if not race:
        assert expected < chosen.first < 2 * expected + 64


def test_all_items_of_a_steep_distribution_are_drawn_without_drawing_for_ever() -> None:
    counts = np.concatenate([[10**9], np.ones(49)]).astype(np.int64)
    drawn = built(counts, name="unigram", negatives=50, distinct=True, power=1.5).draw(
        batch(0, 50), tf.constant([1, 1])
    )
    assert sorted(drawn.item.numpy().tolist()) == list(range(50))
    # Some 1e14 draws: nothing that is drawn so long is missing.
    np.testing.assert_allclose(drawn.log_q, 0, atol=0.2)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sampler\.negatives = 301 with distinct.*only 300 items"):
        built(name="uniform", negatives=301, distinct=True)
    with pytest.raises(ConfigError, match=r"sampler\.parts\.1\.negatives = 301"):
        built(name="mixed", parts=({"name": "uniform"}, {"name": "unigram", "negatives": 301, "distinct": True}))
    rising = COUNTS.copy()
    rising[8] += 10_000
    with pytest.raises(ConfigError, match=r"falling.*number 7 has 400 of them, number 8 has 10363"):
        built(rising, name="log_uniform")
    built(rising, name="unigram")
    with pytest.raises(ConfigError, match="must not be negative; got -1"):
        built(np.array([3, -1], np.int64), name="unigram")
    with pytest.raises(ConfigError, match="no item has one"):
        built(np.array([0, 0], np.int64), name="uniform")
    with pytest.raises(ConfigError, match=r"sampler\.negatives = 2 with distinct.*only 1 items"):
        built(np.array([3, 0], np.int64), name="unigram", negatives=2, distinct=True)
    with pytest.raises(ConfigError, match=rf"sampler\.capacity = 15: .* a batch of {BATCH}"):
        built(name="learned_unigram", capacity=15)


@pytest.mark.parametrize(("capacity", "kept"), [(BATCH, BATCH), (40, 40), (1_000, 96), (50_000_000, 96)])
def test_a_learned_unigram_keeps_no_more_positives_than_its_capacity(capacity: int, kept: int) -> None:
    """Six batches; below the capacity the list is as long as before there was one, and so are its draws."""
    sampler = built(seen=96, name="learned_unigram", negatives=COUNT, capacity=capacity)
    assert sampler.noise.seen.shape == (kept,)
    passed = np.concatenate([batch(number)[:, 0] for number in range(6)])
    last = run(sampler.draw, range(7))[-1]
    q = (1 + np.bincount(passed[-kept:], minlength=SIZE)) / (SIZE + kept)
    np.testing.assert_allclose(np.exp(last.log_q), COUNT * q[last.item], rtol=1e-5)


def test_an_item_without_an_example_is_drawn_by_no_count_of_examples() -> None:
    counts = np.array([30, 10, 0], np.int64)
    unigram = built(counts, name="unigram", negatives=200).draw(batch(0, 2), tf.constant([11, 0]))
    assert set(unigram.item.numpy().tolist()) == {0, 1}
    uniform = built(counts, name="mixed", parts=({"name": "in_batch"}, {"name": "uniform", "negatives": 30}))
    np.testing.assert_allclose(
        uniform.expected_count(tf.constant([0, 1, 2], tf.int64), (16.0, 30.0)), [12 + 10, 4 + 10, 10], rtol=1e-6
    )


def test_every_named_sampler_can_be_built() -> None:
    assert {one["name"] for one in EVERY} == {one.model_fields["name"].annotation.__args__[0] for one in SAMPLERS}
    assert UniformNoise(3).size == 3


# TensorFlow's own samplers


def by_tf(name: str, unique: bool, k: int, positives: tf.Tensor) -> Any:
    op = {
        "uniform": tf.random.uniform_candidate_sampler,
        "log_uniform": tf.random.log_uniform_candidate_sampler,
        "learned_unigram": tf.random.learned_unigram_candidate_sampler,
    }[name]
    # Seeded: one in 560 of these draws meets no item twice, and TensorFlow then gives K q.
    return op(positives, positives.shape[1], k, unique, SIZE, seed=1)


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("name", ["uniform", "log_uniform", "learned_unigram"])
def test_q_is_tensorflows_expected_count(name: str, unique: bool) -> None:
    sampler, q = built(name=name, negatives=60, distinct=unique), probabilities(name, COUNTS)
    theirs = tf.function(lambda positives: by_tf(name, unique, 60, positives), autograph=False)
    for step in range(3):
        positives = batch(step)[:, :1]  # it would count all of a row
        item, true, sampled = (part.numpy() for part in theirs(positives))
        # Its number of tries shows in the count of one item, where no rounding can hide it.
        probe = float(true[0, 0])
        tries = 60.0 if not unique else np.rint(np.log1p(-probe) / np.log1p(-q[int(positives[0, 0])]))
        for items, expected in ((positives, true), (item, sampled)):
            ours = sampler.expected_count(tf.constant(items, tf.int64), tf.constant(tries, tf.float32))
            np.testing.assert_allclose(ours, expected, rtol=2e-5)
        sampler.draw(positives, tf.constant([1, step]))
        if name == "learned_unigram":
            seen = np.concatenate([batch(before)[:, 0].numpy() for before in range(step + 1)])
            q = probabilities(name, COUNTS, seen)
