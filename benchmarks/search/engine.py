"""One engine in a process of its own: builds, sweeps, takes a turn, or opens damaged files. Called by `engines`.

In: the stage, the engine's module, its folder (beside it `vectors.npy`, `queries.npy` and `truth.npy`), and JSON for
the stage. Out: JSON on the last line of its output. Whatever searches does so on one core.
"""

import json
import os
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# Before NumPy is loaded.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from benchmarks.search.rates import rates, recall_of, timed

K, ASKED = 100, 100
LONGEST_S, MOST_BYTES = 30, 6 << 30  # of a process that opens a damaged file
REFUSED, OTHER_ANSWERS = 10, 11


def build(peer: Any, folder: Path, given: list[str]) -> dict[str, Any]:
    """The builds of these names: seconds and bytes an item."""
    vectors, found = np.load(folder.parent / "vectors.npy"), {}
    for name in given:
        remove(folder / name)
        folder.mkdir(exist_ok=True)
        index, taken = timed(lambda name=name: peer.build(name, vectors))
        peer.save(index, folder / name)
        size = sum(file.stat().st_size for file in files(folder / name))
        found[name] = taken | {"bytes_an_item": round(size / len(vectors), 1)}
    return found


def sweep(peer: Any, folder: Path, given: list[str]) -> list[dict[str, Any]]:
    """Recall and queries per second of every setting of the builds of these names."""
    queries, truth = (np.load(folder.parent / f"{name}.npy") for name in ("queries", "truth"))
    swept = []
    for name in given:
        index = peer.opened(folder / name, queries.shape[1])
        for each in peer.searches(name):
            search = peer.searcher(index, each, K)
            recall = recall_of(truth, search(queries))
            swept.append({"name": name, "settings": each, "recall": recall, **rates(search, queries)})
    return swept


def turn(peer: Any, folder: Path, given: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Queries per second of these settings."""
    queries, measured = np.load(folder.parent / "queries.npy"), []
    for each in given:
        search = peer.searcher(peer.opened(folder / each["name"], queries.shape[1]), each["settings"], K)
        search(queries)
        measured.append(rates(search, queries))
    return measured


def damage(peer: Any, folder: Path, given: dict[str, Any]) -> dict[str, int]:
    """How often the index with a file cut short, or with one byte altered, is refused, answers or ends the process."""
    queries = np.load(folder.parent / "queries.npy")[:ASKED]
    # Beside the whole one: `opened` looks for the vectors there.
    whole, broken = folder / given["name"], folder / "broken"
    wanted = peer.searcher(peer.opened(whole, queries.shape[1]), given["settings"], K)(queries)
    draw, found = np.random.default_rng(1), Counter[str]()
    for number in range(given["damages"]):
        remove(broken)
        (shutil.copytree if whole.is_dir() else shutil.copyfile)(whole, broken)
        chosen = [file for file in files(broken) if file.stat().st_size]
        file = chosen[int(draw.integers(len(chosen)))]
        place = int(draw.integers(file.stat().st_size))
        with file.open("r+b") as handle:
            if number % 2:
                handle.truncate(place)
            else:
                handle.seek(place)
                altered = handle.read(1)[0] ^ int(draw.integers(1, 256))
                handle.seek(place)
                handle.write(bytes([altered]))

        def answer() -> int:
            try:
                got = peer.searcher(peer.opened(broken, queries.shape[1]), given["settings"], K)(queries)
            except Exception:  # noqa: BLE001 - any of them says that the index is not taken
                return REFUSED
            return 0 if np.array_equal(got, wanted) else OTHER_ANSWERS

        found[("cut short: " if number % 2 else "altered: ") + outcome(answer)] += 1
    remove(broken)
    return dict(sorted(found.items()))


def outcome(answer: Callable[[], int]) -> str:
    """What a copy of this process comes to that gives the answer."""
    child = os.fork()
    if not child:
        signal.alarm(LONGEST_S)
        # A damaged length must not take the machine's memory.
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        os._exit(answer())
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"no answer within {LONGEST_S} s" if name == "SIGALRM" else f"the process ends by {name}"
    known = {0: "answers as before", REFUSED: "refused", OTHER_ANSWERS: "other answers"}
    return known.get(os.WEXITSTATUS(status), f"the process ends with {os.WEXITSTATUS(status)}")


def files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


if __name__ == "__main__":
    stage, module, place, settings = sys.argv[1:]
    if stage != "build":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    stages: dict[str, Callable[..., Any]] = {"build": build, "sweep": sweep, "turn": turn, "damage": damage}
    made = stages[stage](import_module(f"benchmarks.search.{module}_index"), Path(place), json.loads(settings))
    print(json.dumps(made))
