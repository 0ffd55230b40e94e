"""Shows the progress of a training: a bar of its examples, a line for each epoch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.console import progress, say
from towers.errors import DivergedError
from towers.training.protocols import Summary
from towers.training.trainer import Trainer

CHOSEN_BY = "mean with and without the prior"  # what chooses the epoch where that is not the metric


def fit(name: str, trainer: Trainer, examples: int) -> Summary:
    """Trains to the end.

    Args:
        name: of the phase.
        trainer: of its steps.
        examples: how many there are, perhaps fewer than a batch has.

    Raises:
        DivergedError: the training diverged; the message begins with `name`.
    """
    config, size = trainer.config, min(trainer.config.batch_size, examples)
    steps = trainer.examples.steps * config.epochs
    # A resumed run counts only the steps left, so the rate shown is this process's own.
    before = trainer.done
    with progress(name, total=(steps - before) * size, unit="examples") as advance:
        reached = before

        def on_step(done: int, loss: float) -> None:
            nonlocal reached
            advance((done - reached) * size, note="" if math.isnan(loss) else f"loss {loss:.4f}")
            reached = done

        def on_epoch(record: dict[str, float]) -> None:
            shown = f", {config.metric} {record[config.metric]:.4f}" if config.metric in record else ""
            if record.get("criterion") != record.get(config.metric):
                shown += f" ({CHOSEN_BY} {record['criterion']:.4f})"
            if "margin" in record:
                shown += f", margin {record['margin']:.3f}"
            if record.get("margin_clamped"):
                shown += f" (its bound; the classes are {record['margin_estimate']:.3f} wide)"
            say(f"epoch {record['epoch']:.0f}: loss {record['loss']:.4f}{shown}, {record['train_seconds']:.1f} s")

        try:
            return trainer.fit(on_step, on_epoch)
        except DivergedError as error:
            # Steps are counted in each stage, and those of a refit or a teacher have other batches.
            raise DivergedError(f"{name}: {error}") from None


def epoch_seconds(stages: Sequence[Mapping[str, Any]]) -> float:
    """Returns the seconds of all epochs of a run's stages, also of those that an earlier process trained."""
    records = [record for stage in stages for record in stage["history"]]
    return float(sum(record["train_seconds"] + record.get("validation_seconds", 0.0) for record in records))
