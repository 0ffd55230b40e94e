"""float16 and int8 vectors: how far a code may be off, and that decoding loses nothing more."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serving.search import vector_codes
from serving.search.index import rescore
from serving.search.vector_codes import CodedVectors, VectorType, decoded, encode, products, rounded

LEAST = float(np.finfo(np.float32).tiny)
VECTORS = np.random.default_rng(5).normal(size=(50, 6)).astype(np.float32)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Any floats, and vectors of numbers of one magnitude: zeros, tiny, ordinary, huge.
vectors = arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 8)), elements=numbers) | st.builds(
    lambda whole, power: (whole * 2.0**power).astype(np.float32),
    arrays.arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 8)), elements=st.integers(-1000, 1000)),
    st.sampled_from([-149, -140, -126, -60, -15, -3, 0, 6, 100, 117]),
)


@given(vectors)
def test_an_int8_number_is_at_most_half_a_scale_off(given: np.ndarray) -> None:
    codes, scales = encode(given, "int8")
    assert codes.dtype == np.int8 and scales.dtype == np.float32
    found = np.asarray(decoded("int8", (codes, scales)))
    for vector, its_codes, scale, back in zip(given, codes, scales, found, strict=True):
        most = max(abs(Fraction(float(number))) for number in vector)
        assert Fraction(float(scale)) <= max(most / 127 * (1 + Fraction(1, 2**23)), Fraction(LEAST))
        for number, code, its in zip(vector, its_codes, back, strict=True):
            # The product has no rounding of its own, in float32 or anywhere else.
            assert Fraction(float(its)) == int(code) * Fraction(float(scale))
            off = abs(Fraction(float(number)) - Fraction(float(its)))
            # The scale is up to 2**-16 of itself too small: the greatest code is as much too low.
            assert off <= Fraction(float(scale)) * (Fraction(1, 2) + Fraction(127, 2**16))
        if most == 0:
            assert not back.any()
        elif most >= 127 * LEAST:
            assert max(abs(int(code)) for code in its_codes) == 127


@given(vectors)
def test_a_float16_number_is_the_nearest_there_is(given: np.ndarray) -> None:
    (codes,) = encode(given, "float16")
    most = float(np.finfo(np.float16).max)
    wanted = np.array([[min(max(float(number), -most), most) for number in vector] for vector in given])
    np.testing.assert_array_equal(codes, wanted.astype(np.float16))
    np.testing.assert_array_equal(np.asarray(decoded("float16", (codes,))), codes.astype(np.float64))


@given(vectors, st.sampled_from(["float16", "int8"]))
def test_what_was_decoded_has_the_same_codes_again(given: np.ndarray, kind: VectorType) -> None:
    once = encode(given, kind)
    for first, second in zip(once, encode(np.asarray(decoded(kind, once)), kind), strict=True):
        np.testing.assert_array_equal(first, second)


def test_every_finite_float16_decodes_as_numpy_casts_it() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)][:, np.newaxis]
    assert len(finite) == 63_488
    np.testing.assert_array_equal(np.asarray(decoded("float16", (finite,))), finite.astype(np.float32))


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_it_reads_like_an_array(kind: VectorType) -> None:
    coded, whole = decoded(kind, encode(VECTORS, kind)), rounded(VECTORS, kind)
    assert isinstance(coded, CodedVectors) and whole.dtype == np.float32
    assert (len(coded), coded.shape, coded.size) == (50, (50, 6), 300)
    places = np.array([[3, 49], [-1, 7]])
    for rows in (5, slice(3, 9), np.array([4, 4, 0]), np.arange(50) % 3 == 0, places):
        np.testing.assert_array_equal(coded[rows], whole[rows])
    np.testing.assert_array_equal(coded.take(places), whole[[[3, 49], [0, 7]]], "a negative row is padding")
    wide = coded.joined(np.arange(50.0), lambda some, more: np.concatenate([some, more[..., None]], axis=-1), 1)
    assert wide.shape == (50, 7)
    np.testing.assert_array_equal(wide.take(places)[..., :6], coded.take(places))
    assert wide.take(places)[..., 6].tolist() == [[3, 49], [0, 7]]


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_products_and_scores_are_those_of_the_decoded_vectors(
    kind: VectorType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_codes, "_PIECE_NUMBERS", 40)  # pieces of six rows
    queries, whole = VECTORS[:4], rounded(VECTORS, kind)
    coded = decoded(kind, encode(VECTORS, kind))
    np.testing.assert_allclose(products(queries, coded, 5, 31), queries @ whole[5:31].T, rtol=1e-5, atol=1e-6)
    rows = np.array([[0, 7, -1], [49, 1, 2], [3, 3, 3], [-1, -1, 9]])
    for query, its_rows, scores in zip(queries, rows, rescore(coded, queries, rows), strict=True):
        for row, score in zip(its_rows, scores, strict=True):
            exact = sum(float(a) * float(b) for a, b in zip(query, whole[row], strict=True))
            assert score == (np.float32(exact) if row >= 0 else -np.inf)
