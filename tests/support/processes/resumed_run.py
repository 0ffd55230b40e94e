"""Trains the group world for some steps in a process of its own: `python resumed_run.py RUNS`.

RUNS is a JSON list of [directory, steps, out, sections]. Each goes on from what is in its directory, stops after so
many steps in all as Ctrl-C would, and writes weights, sampler state and the next draw to `out` (.npz).
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.worlds.training import trainer
from towers.training.prefetch import as_tensors


def run(directory: str, steps: int, out: str, sections: dict[str, Any]) -> None:
    built = trainer(Path(directory), validate=False, train={"epochs": 2}, **sections)

    def stop(done: int, loss: float) -> None:
        if done == steps:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        built.fit(stop)
    batch = as_tensors(built.examples.batch(1, 2))
    state = {f"variable {number}": np.array(each) for number, each in enumerate(built.task.variables)}
    state |= {
        f"slot {number} {place}": np.array(slot)
        for number, slots in enumerate(built.optimizer.slots)
        for place, slot in enumerate(slots)
    }
    drawn = built.task.sampler.draw(batch.item, batch.seed)._asdict()
    state |= {name: np.array(value) for name, value in drawn.items()}
    np.savez(out, steps=int(built.optimizer.step), **state)


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        run(*each)
