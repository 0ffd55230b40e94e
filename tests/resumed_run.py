"""Trains the group world for some steps in a process of its own: `python resumed_run.py DIRECTORY STEPS OUT SECTIONS`.

Goes on from what is in DIRECTORY, stops after STEPS in all as Ctrl-C would, and writes weights, sampler state and the
next draw to OUT (.npz).
"""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
from training_world import trainer

from towers.training import as_tensors


def main(directory: str, steps: str, out: str, sections: str) -> None:
    built = trainer(Path(directory), validate=False, train={"epochs": 2}, **json.loads(sections))

    def stop(done: int, loss: float) -> None:
        if done == int(steps):
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
    main(*sys.argv[1:])
