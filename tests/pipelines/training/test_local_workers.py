"""Workers or devices of this machine: the run of one process with one device, whatever ends them on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from pipelines.errors import DataError
from pipelines.training import local_workers
from pipelines.training.local_workers import free_ports
from pipelines.training.train import run
from pipelines.training.workers import refuse_unshared
from tests.support.processes.running_service import eventually, runs
from tests.support.worlds.interrupted import ENVIRONMENT, history, make_world, same, stages, stopped, training, weights
from towers.config.recipe import load_config
from towers.config.sections import TrainConfig
from towers.errors import ConfigError, LostWorkerError
from towers.ops.replicas import ALONE, Replicas
from towers.training.stop_request import ASK_STEPS
from towers.training.workers import Workers, lost_workers_told

# Masks are drawn by each worker for itself, so one process trains with others.
UNMASKED = ("mask_share = 0.3", "mask_share = 0.0")
TASK = {"type": "worker", "index": 0}
CLOSE = 1e-3  # with Adam, after two stages
# The command, which sends itself SIGTERM on its way.
TERMINATED = """
from pipelines.cli import app
from tests.support.processes.interrupted_run import arm, terminate
arm({what!r}, "", {count}, terminate)
app.main()
"""
# One that is killed when all is trained, and what it made not yet in its place.
KILLED = """
from pipelines.cli import app
from tests.support.processes.interrupted_run import arm, kill
arm("os.rename", "summary.json", 1, kill)
app.main()
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = make_world(tmp_path_factory.mktemp("workers"))
    (world / "unmasked.toml").write_text((world / "recipe.toml").read_text().replace(*UNMASKED))
    return world


def command(words: list[str], workers: int) -> list[str]:
    return [sys.executable, "-m", "pipelines", *words, "--workers", str(workers)]


def ended(words: list[str], workers: int) -> str:
    done = subprocess.run(command(words, workers), env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.fixture(scope="module")
def whole(world: Path) -> Path:
    told = ended(training(world, world / "whole", "unmasked.toml"), 2)
    assert told.count("next: ") == 1
    assert "on validation: " in told
    return world / "whole"


@pytest.fixture(scope="module")
def alone(world: Path) -> Path:
    ended(training(world, world / "alone", "unmasked.toml"), 1)
    return world / "alone"


def compare(alone: Path, several: Path) -> None:
    for one, two in zip(history(alone), history(several), strict=True):
        for epoch, other in zip(one, two, strict=True):
            assert epoch == pytest.approx(other, rel=CLOSE)
    ones, twos = weights(alone), weights(several)
    assert ones.keys() == twos.keys()
    for name, value in ones.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(twos[name], value, rtol=CLOSE, atol=CLOSE, err_msg=name)


def test_workers_import_nothing_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("raise SystemExit(7)\n")
    assert local_workers.run(1, ["losses"]) == 0


@pytest.mark.long
def test_two_workers_write_the_run_of_one_process(alone: Path, whole: Path) -> None:
    compare(alone, whole)


@pytest.mark.long
def test_two_devices_write_the_run_of_one_and_resume_to_the_same_weights(
    world: Path, alone: Path, tmp_path: Path
) -> None:
    several = ["--devices", "2"]
    stopped([*training(world, tmp_path / "whole", "unmasked.toml"), *several], [])
    compare(alone, tmp_path / "whole")
    # SIGTERM saves the step that it comes in, without its loss. The last one comes in the refit.
    points = [("step", "", 3), ("validation", "", 1), ("step", "", 12), ("step", "", 25)]
    *ends, _ = stopped([*training(world, tmp_path / "run", "unmasked.toml"), *several], points, by="term")
    assert [each["ended"] for each in ends] == ["130"] * len(points)
    metrics = [[each["ndcg@5"] for each in history(tmp_path / name)[0]] for name in ("whole", "run")]
    assert metrics[0] == metrics[1]
    ones, others = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert ones.keys() == others.keys()
    for name, value in ones.items():
        np.testing.assert_array_equal(others[name], value, err_msg=name)


@pytest.mark.long
def test_two_devices_start_from_an_earlier_run_as_one_does(world: Path, tmp_path: Path) -> None:
    kept = [*training(world, tmp_path / "kept", "unmasked.toml"), "--set", "train.keep_state=true", "--devices", "2"]
    stopped(kept, [])
    for number in (1, 2):
        warm = ["--warm-from", str(tmp_path / "kept"), "--devices", str(number)]
        stopped([*training(world, tmp_path / str(number), "unmasked.toml"), *warm], [])
    compare(tmp_path / "1", tmp_path / "2")


@pytest.mark.long
def test_a_killed_worker_ends_all_and_they_resume_to_the_same_weights(world: Path, whole: Path, tmp_path: Path) -> None:
    words = training(world, tmp_path / "run", "unmasked.toml")
    latest = tmp_path / ".run.unfinished" / "choose" / "checkpoints" / "latest"
    for rank in (1, 0):
        before = checkpoints(latest)
        with subprocess.Popen(command(words, 2), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as parent:
            while not checkpoints(latest) - before:
                assert parent.poll() is None, parent.communicate()[1][-3000:]
                time.sleep(0.02)
            os.kill(worker_of(parent.pid, rank), signal.SIGKILL)
            _, told = parent.communicate(timeout=120)
        assert parent.returncode == 1
        assert f"error: worker {rank} of 2 was ended by SIGKILL" in told
        assert not (tmp_path / "run").exists()
    assert "continuing the unfinished run" in ended(words, 2)
    same(tmp_path / "run", whole)
    assert [stage["epochs"] for stage in stages(tmp_path / "run")] == [stage["epochs"] for stage in stages(whole)]


def checkpoints(latest: Path) -> set[str]:
    """The names of whole checkpoints."""
    return {each.name for each in latest.glob("*-step-*-best-*")} if latest.exists() else set()


def worker_of(parent: int, rank: int) -> int:
    """The process of a rank among the children of a launcher."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        [config] = [each for each in variables if each.startswith(b"TF_CONFIG=")]
        if json.loads(config.partition(b"=")[2])["task"]["index"] == rank:
            return int(child)
    raise AssertionError(f"no worker {rank}")


def addresses(*hosts: str) -> list[str]:
    return [f"{host}:{port}" for host, port in zip(hosts, free_ports(len(hosts)), strict=True)]


@contextmanager
def pair(workers: list[str], *programs: list[str]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two workers as on two machines: each its own program of Python, under a `TF_CONFIG`."""
    cluster = {"worker": workers}
    processes = []
    for rank, words in enumerate(programs):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        processes.append(
            subprocess.Popen(
                [sys.executable, *words],
                env=ENVIRONMENT | {"TF_CONFIG": config},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_worker_of_another_recipe_is_refused(world: Path, tmp_path: Path) -> None:
    """By the worker itself, not by a model that is a little wrong."""

    class Second(Replicas):
        rank = 1
        count = workers = 2

        def from_first(self, text: str) -> str:
            return "what the first worker says of its own recipe and data set"

    with pytest.raises(DataError, match="worker 1: its recipe or data set is not that of the first worker"):
        run(load_config(world / "recipe.toml"), world / "dataset", tmp_path / "run", replicas=Second())


def test_a_worker_that_is_lost_once_the_run_is_in_place_takes_nothing_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, other = (Workers(tf.distribute.get_strategy(), rank, 2) for rank in (0, 1))
    lost = Mock(side_effect=tf.errors.UnavailableError(None, None, "Connection reset by peer"))
    monkeypatch.setattr(Workers, "gather_array", lost)
    first.published()
    assert lost.called
    with pytest.raises(LostWorkerError, match="worker 1 of 2: another worker ended"), lost_workers_told(other):
        other.from_first("")  # this one does not know whether it is


@pytest.mark.long
def test_sigterm_to_one_machine_saves_a_step_of_all_and_they_resume_to_the_same_weights(
    world: Path, whole: Path, tmp_path: Path
) -> None:
    """As a cloud sends it before it takes a machine away."""
    words = [*training(world, tmp_path / "run", "unmasked.toml"), "--set", "train.checkpoint_steps=100000"]
    latest = tmp_path / ".run.unfinished" / "choose" / "checkpoints" / "latest"
    # The last one comes too late for a question of the first stage but that at its end.
    for rank, what, count, step in ((1, "step", 3, 10), (1, "validation", 1, 20), (0, "step", 2, 27)):
        programs = [["-m", "pipelines", *words], ["-m", "pipelines", *words]]
        programs[rank] = ["-c", TERMINATED.format(what=what, count=count), *words]
        with pair(addresses("127.0.0.1", "127.0.0.1"), *programs) as machines:
            for machine in machines:
                _, told = machine.communicate(timeout=120)
                assert machine.returncode == 130, told[-3000:]
                assert "interrupted; the last checkpoint is kept" in told
        assert newest_step(latest) == step
    assert "continuing the unfinished run" in ended(words, 2)
    same(tmp_path / "run", whole)


@pytest.mark.long
def test_sigterm_to_the_parent_or_a_worker_saves_a_step_and_ends_all(world: Path, tmp_path: Path) -> None:
    words = training(world, tmp_path / "run", "unmasked.toml")
    for key in ("epochs", "patience", "checkpoint_steps"):
        words += ["--set", f"train.{key}=100000"]
    latest = tmp_path / ".run.unfinished" / "choose" / "checkpoints" / "latest"
    last = 0
    for stopped_one, number in (("parent", signal.SIGTERM), ("worker", signal.SIGTERM), ("parent", signal.SIGKILL)):
        before = checkpoints(latest)
        with subprocess.Popen(command(words, 2), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as parent:
            while not checkpoints(latest) - before:
                assert parent.poll() is None, parent.communicate()[1][-3000:]
                time.sleep(0.02)
            children = [worker_of(parent.pid, rank) for rank in (0, 1)]
            os.kill(parent.pid if stopped_one == "parent" else children[1], number)
            _, told = parent.communicate(timeout=120)
        # By the first worker alone, also where nobody is left to end the two.
        assert told.count("interrupted; the last checkpoint is kept") == 1
        assert parent.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL), told[-3000:]
        eventually(partial(gone, children), "the end of both", within_s=60)
        assert newest_step(latest) > last and newest_step(latest) % ASK_STEPS == 0
        last = newest_step(latest)


@pytest.mark.long
def test_no_worker_ends_well_before_the_run_is_in_its_place(world: Path, whole: Path, tmp_path: Path) -> None:
    """A Job starts one that did never again, and the first could not resume alone."""
    words = training(world, tmp_path / "run", "unmasked.toml")
    with pair(addresses("127.0.0.1", "127.0.0.1"), ["-c", KILLED, *words], ["-m", "pipelines", *words]) as machines:
        assert machines[0].wait(timeout=300) == -signal.SIGKILL
        _, told = machines[1].communicate(timeout=120)
        assert (machines[1].returncode, told.count("error: worker 1 of 2: another worker ended")) == (1, 1)
    assert (tmp_path / ".run.unfinished" / "checkpoints" / "final.index").is_file()
    ended(words, 2)
    same(tmp_path / "run", whole)
    # The first alone, started again when RUN is there, waits for nobody.
    config = json.dumps({"cluster": {"worker": addresses("127.0.0.1", "127.0.0.1")}, "task": TASK})
    again = [sys.executable, "-m", "pipelines", *words]
    done = subprocess.run(again, env=ENVIRONMENT | {"TF_CONFIG": config}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"{tmp_path / 'run'} already exists" in done.stderr


def gone(processes: list[int]) -> bool:
    return not any(map(runs, processes))


def newest_step(latest: Path) -> int:
    """The steps that are done at the newest checkpoint: an epoch has 9, so its end is one of ten questions' seldom."""
    return max(int(name.split("-")[2]) for name in checkpoints(latest))


@pytest.mark.long
def test_two_machines_with_folders_of_their_own_resume_to_the_same_weights(
    world: Path, whole: Path, tmp_path: Path
) -> None:
    """As in docs/model/workers.md: each has an address, a data set, a recipe and an `--out`; here one disk has both."""
    workers, commands = addresses("127.0.0.1", "127.0.0.2"), []
    for machine in ("one", "two"):
        shutil.copytree(world / "dataset", tmp_path / machine / "dataset")
        shutil.copyfile(world / "unmasked.toml", tmp_path / machine / "recipe.toml")
        commands.append(["-m", "pipelines", *training(tmp_path / machine, tmp_path / machine / "run")])
    latest = tmp_path / "one" / ".run.unfinished" / "choose" / "checkpoints" / "latest"
    for rank in (1, 0):
        before = checkpoints(latest)
        with pair(workers, *commands) as machines:
            while not checkpoints(latest) - before:
                assert machines[0].poll() is None, machines[0].communicate()[1][-3000:]
                time.sleep(0.02)
            machines[rank].kill()
            other = machines[1 - rank]
            _, told = other.communicate(timeout=120)
            assert (other.returncode, machines[rank].wait()) == (1, -signal.SIGKILL)
            assert f"error: worker {1 - rank} of 2: another worker ended; the last checkpoint is kept" in told
    with pair(workers, *commands) as machines:
        for machine in machines:
            _, told = machine.communicate(timeout=300)
            assert machine.returncode == 0, told[-3000:]
    same(tmp_path / "one" / "run", whole)
    assert not [*(tmp_path / "two").glob("*run*")]


@pytest.mark.parametrize(
    ("keys", "workers", "told"),
    [
        ({"batch_size": 64}, 3, r"train\.batch_size: 3 workers cannot share 64 examples equally; take a multiple of 3"),
        ({"jit_compile": True}, 2, r"train\.jit_compile: .*set it to false"),
        ({"keep_state": True}, 2, r"train\.keep_state: .*set it to false"),
    ],
)
def test_what_workers_cannot_share_is_refused(keys: dict[str, int], workers: int, told: str) -> None:
    refuse_unshared(TrainConfig(**keys), ALONE)
    with pytest.raises(ConfigError, match=told):
        refuse_unshared(TrainConfig(**keys), several(workers))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"batch_size": 63}, r"train\.batch_size: 2 devices cannot share 63 examples equally; take a multiple of 2"),
        ({"jit_compile": True}, r"train\.jit_compile: XLA compiles no exchange between devices; set it to false"),
    ],
)
def test_what_devices_cannot_share_is_refused(keys: dict[str, int], told: str) -> None:
    refuse_unshared(TrainConfig(keep_state=True), several(2, workers=1), warm=True)
    with pytest.raises(ConfigError, match=told):
        refuse_unshared(TrainConfig(**keys), several(2, workers=1))


def test_a_warm_start_of_several_workers_is_refused() -> None:
    refuse_unshared(TrainConfig(), ALONE, warm=True)
    with pytest.raises(ConfigError, match="--warm-from: several workers cannot start from an earlier run"):
        refuse_unshared(TrainConfig(), several(2), warm=True)


def test_teachers_of_several_workers_are_refused() -> None:
    refuse_unshared(TrainConfig(), several(2, workers=1), taught=True)
    with pytest.raises(
        ConfigError, match=r"distillation\.models: several workers train no teachers; train alone, or without them"
    ):
        refuse_unshared(TrainConfig(), several(2), taught=True)


def several(count: int, workers: int | None = None) -> Replicas:
    replicas = Replicas()
    replicas.count, replicas.workers = count, count if workers is None else workers
    return replicas
