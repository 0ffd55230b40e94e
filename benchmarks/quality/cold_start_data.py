"""The data of the study of cold starts: a synthetic world and MovieLens-100k, items and users with a pretrained vector.

In: the folder of MovieLens-100k; sizes and a seed. Out: data sets whose items and users have a column `embedding`.

World: that of `towers synth`. An item's latent factors are its shares in the topics, of length 1: what it is about, not
    how popular it is. A user's are the square roots of their tastes. Each embedding is a random projection of them to
    twice as many numbers, plus noise, as a model of texts or pictures would know a thing: in part, and in numbers of
    its own.
MovieLens: films by a truncated SVD of TF-IDF weights of the words of their titles and of their genres, and what a text
    model reads of a year; users by age, gender and occupation. No event is read, and a film's text is there when it is.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.ingest.synthetic import synth
from towers.config.recipe import parse_config

EMBEDDING = "embedding"
SIZES = {"users": 6_000, "items": 3_000, "events": 150_000}
NUMBERS = 64  # of an embedding of the world, which has 32 topics
ITEM_NOISE, USER_NOISE = 1.0, 2.0  # length of the noise, where that of the latent factors is 1
SPLIT = {"split": "global_time", "valid_share": 0.1, "test_share": 0.2}
RANK = 24  # of a film's words and genres
YEARS = (1950, 1970, 1980, 1990, 1993, 1995, 1996, 1997, 1998)
AGES = (18, 25, 35, 45, 56)
Floats = NDArray[np.float32]


def world(seed: int, work: Path) -> Dataset:
    """The data set of one world, made where it is not there yet."""
    out = work / "datasets" / f"world_{seed}"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            raw = Path(folder) / "world"
            synth.run(raw, **SIZES, seed=seed)
            rng = np.random.default_rng((seed, 1))
            for side, truth, root, noise in (
                ("items", "item_vectors", False, ITEM_NOISE),
                ("users", "query_vectors", True, USER_NOISE),
            ):
                latent = np.load(raw / "truth" / f"{truth}.npy")
                embedding = view(np.sqrt(latent) if root else latent, noise, rng)
                frame = pl.read_parquet(raw / f"{side}.parquet")
                frame.with_columns(pl.Series(EMBEDDING, embedding)).write_parquet(raw / f"{side}.parquet")
            prepare.run(parse_config({"data": SPLIT}).data, raw, out)
    return Dataset.open(out)


def view(latent: NDArray[Any], noise: float, rng: np.random.Generator) -> Floats:
    """A noisy linear view of latent factors.

    Args:
        latent: [N, Z]; scaled to length 1.
        noise: length of the noise, in expectation.
        rng: of projection and noise.

    Returns:
        [N, NUMBERS]: ``P h + e``, P with columns of length 1 in expectation, e of length `noise`.
    """
    unit = latent / np.linalg.norm(latent, axis=1, keepdims=True)
    projection = rng.standard_normal((latent.shape[1], NUMBERS))
    seen: Floats = ((unit @ projection + noise * rng.standard_normal((len(unit), NUMBERS))) / NUMBERS**0.5).astype(
        np.float32
    )
    return seen


def films(data: Path, work: Path) -> Path:
    """A folder with the files of MovieLens-100k and the embeddings of its items and users, made where it is missing."""
    out = work / "films"
    if not out.exists():
        with tempfile.TemporaryDirectory(dir=work) as folder:
            made = Path(folder) / "films"
            made.mkdir()
            shutil.copyfile(data / "ml-100k.inter", made / "ml-100k.inter")
            for side, embed in EMBED.items():
                header, *lines = (data / f"ml-100k.{side}").read_text(encoding="utf-8").splitlines()
                vectors = embed([line.split("\t") for line in lines])
                rows = [
                    f"{line}\t{' '.join(f'{x:.5f}' for x in each)}" for line, each in zip(lines, vectors, strict=True)
                ]
                text = "\n".join([f"{header}\t{EMBEDDING}:float_seq", *rows])
                (made / f"ml-100k.{side}").write_text(f"{text}\n", encoding="utf-8")
            made.rename(out)
    return out


def of_films(rows: Sequence[Sequence[str]]) -> Floats:
    """The embeddings of films: columns of words and genres, then of the year.

    Args:
        rows: item, words of the title, year, genres.
    """
    texts = [
        [f"word {word.lower()}" for word in row[1].split()] + [f"genre {each}" for each in row[3].split()]
        for row in rows
    ]
    years = [int(row[2]) if row[2].isdigit() else 0 for row in rows]
    typical = float(np.median([year for year in years if year]))
    year = np.array([float(each or typical) for each in years])
    return np.hstack([reduced(texts, RANK), steps(year, YEARS)]).astype(np.float32)


def of_people(rows: Sequence[Sequence[str]]) -> Floats:
    """The embeddings of users: age, gender, occupation.

    Args:
        rows: user, age, gender, occupation, code of the place.
    """
    age = np.array([float(row[1]) for row in rows])
    kinds = sorted({row[3] for row in rows})
    occupation = np.array([[row[3] == kind for kind in kinds] for row in rows])
    gender = np.array([[row[2] == "F"] for row in rows])
    return np.hstack([steps(age, AGES), gender, occupation]).astype(np.float32)


def reduced(texts: Sequence[Sequence[str]], rank: int) -> NDArray[np.float64]:
    """[N, rank]: the truncated SVD of TF-IDF weights, of words that at least two of the texts have.

    A weight is ``log(N / n)``, n the number of texts with the word; each text then has length 1.
    """
    counts = Counter(word for text in texts for word in set(text))
    place = {word: number for number, word in enumerate(sorted(word for word, n in counts.items() if n > 1))}
    weight = np.zeros((len(texts), len(place)))
    for row, text in enumerate(texts):
        for word in set(text) & place.keys():
            weight[row, place[word]] = np.log(len(texts) / counts[word])
    weight /= np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-12)
    left, scale, _ = np.linalg.svd(weight, full_matrices=False)
    first: NDArray[np.float64] = left[:, :rank] * scale[:rank]
    return first


def steps(values: NDArray[np.float64], edges: Sequence[int]) -> NDArray[np.float64]:
    """[N, edges - 1]: how far each value is from one edge to the next, 0 below and 1 above."""
    parts = [np.clip((values - low) / (high - low), 0.0, 1.0) for low, high in pairwise(edges)]
    return np.stack(parts, axis=1)


EMBED: dict[str, Callable[[Sequence[Sequence[str]]], Floats]] = {"item": of_films, "user": of_people}
