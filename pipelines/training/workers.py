"""What several workers of a training must have alike, and what workers or devices cannot share."""

import hashlib

import tomli_w

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.training.earlier_run import EarlierRun
from pipelines.training.similarity.labels import pairs_digest
from towers.config.recipe import Config
from towers.config.sections import TrainConfig
from towers.errors import ConfigError
from towers.ops.replicas import Replicas


def refuse_unshared(config: TrainConfig, replicas: Replicas, *, warm: bool = False, taught: bool = False) -> None:
    """Refuses what several workers or devices cannot train as one process on one device would.

    Args:
        config: settings of the training.
        replicas: the workers or devices.
        warm: whether it starts from an earlier run.
        taught: whether it has teachers.

    Raises:
        ConfigError: names the setting.
    """
    count, kind = replicas.count, "workers" if replicas.workers > 1 else "devices"
    if config.batch_size % count:
        raise ConfigError(
            f"train.batch_size: {count} {kind} cannot share {config.batch_size} examples equally; take a "
            f"multiple of {count}, or another number of {kind}"
        )
    if count > 1 and config.jit_compile:
        raise ConfigError(f"train.jit_compile: XLA compiles no exchange between {kind}; set it to false")
    if replicas.workers == 1:
        return
    if warm:
        raise ConfigError("--warm-from: several workers cannot start from an earlier run; leave it out, or train alone")
    if taught:
        raise ConfigError(
            "distillation.models: several workers train no teachers; train alone, or without them (--set distillation=)"
        )
    if config.keep_state:
        raise ConfigError("train.keep_state: several workers keep no state; set it to false, or train alone")


def key_of(config: Config, data: Dataset, warm: EarlierRun | None = None) -> str:
    """Identifies a recipe, its data set and the run that it starts from."""
    pairs = config.similarity.pairs
    learnt_from = data.manifest.fingerprint + (pairs_digest(pairs) if pairs is not None else "")
    learnt_from += warm.digest if warm is not None else ""
    return hashlib.sha256((text_of(config) + learnt_from).encode()).hexdigest()


def text_of(config: Config) -> str:
    """The recipe with all its settings, as TOML."""
    return tomli_w.dumps(config.model_dump(exclude_none=True, mode="json"))


def agree(key: str, replicas: Replicas) -> None:
    """Refuses workers that would train different models.

    Args:
        key: this worker's, from `key_of`.
        replicas: the workers.

    Raises:
        DataError: the first worker has another key.
    """
    if replicas.from_first(key) != key:
        raise DataError(
            f"worker {replicas.rank}: its recipe or data set is not that of the first worker; give every worker the "
            "same --config, --set and --dataset"
        )
