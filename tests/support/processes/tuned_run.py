"""One search on a tiny world, in a process of its own: `python tuned_run.py DATASET OUT TRIALS [KILL_AT]`.

Shares and finals are short. With KILL_AT the process kills itself in the second epoch that this training of the process
adds, as `kill -9` would: no handler runs, nothing is flushed.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.tuning import finals, search, training, tune
from towers.config.recipe import parse_config

FIXED: dict[str, Any] = {
    "features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}},
    "model": {"dimension": 8},
    "optimizer": {"learning_rate": 0.05},
    "train": {"batch_size": 16},
}
METRIC, SEED = "recall@5", 3


def shorten(put: Callable[[Any, str, Any], None]) -> None:
    """Makes shares and finals as short as they can be; `put` sets an attribute."""
    put(search, "SHARE_EPOCHS", 3.0)
    put(finals, "LONGER", 2.0)
    put(finals, "MOST_LONGER", 1)
    put(finals, "LEAST_FALLING", 2)


def die_in(kill_at: int) -> None:
    """Arms the kill."""
    trainings = epochs = 0
    train, add = search.train, training._Watch._add

    def counting(*args: Any) -> training.Run:
        nonlocal trainings, epochs
        trainings, epochs = trainings + 1, 0
        return train(*args)

    def dying(*args: Any) -> None:
        nonlocal epochs
        epochs += 1
        if trainings == kill_at and epochs == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        add(*args)

    search.train = counting
    training._Watch._add = dying  # type: ignore[method-assign]


def main(dataset: str, out: str, trials: str, kill_at: str = "") -> None:
    shorten(setattr)
    if kill_at:
        die_in(int(kill_at))
    tune.run(Path(dataset), Path(out), config=parse_config(FIXED), trials=int(trials), metric=METRIC, seed=SEED)


if __name__ == "__main__":
    main(*sys.argv[1:])
