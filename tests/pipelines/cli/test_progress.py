"""What a long command says: its phases once, no start-up messages, where the result lies, and what to give next."""

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from pipelines import console
from pipelines.cli import app
from serving.bundle.reader import Bundle
from serving.catalogue.journal import Journal
from tests.support.terminal import CONTROL, ESCAPES, Streams, streams

# Lines of libraries on their own: absl, TensorFlow's and CUDA's start, Python's warnings.
NOISE = re.compile(r"^[IWEF]\d{4} |absl::|tensorflow|CUDA|cuda|oneDNN|TF_|Warning|Partitioner", re.MULTILINE)
BAR = re.compile(r"([^:]+): (?:[\d,]+ \w+ in [\d.]+ s, .*|[\d.]+ s)")
RECIPE = """
[features.query]
user_id = {kind = "id"}
[features.candidate]
item_id = {kind = "id"}
[model]
dimension = 8
prior = "off"
[train]
epochs = 1
batch_size = 512
"""

# The words, the phases, the start of the line that says where the result is, the next command.
COMMANDS: dict[str, tuple[str, list[str], str, str]] = {
    "synth": (
        "synth --out world --users 60 --items 1000 --events 3000",
        ["make items", "make events"],
        "world: 60 users, 1,000 items, ",
        "prepare --events world --out dataset",
    ),
    "prepare": (
        "prepare --events world --out dataset",
        ["read items.parquet", "read users.parquet", "read events", "sort and write"],
        "dataset: 60 users, 1,000 items; ",
        "train --dataset dataset --config default --out run",
    ),
    "check": (
        "check --config ids.toml --dataset dataset --set train.epochs=1",
        ["verify", "recipe", "leaks", "features"],
        "",
        "train --dataset dataset --config ids.toml --set train.epochs=1 --out run",
    ),
    "train": (
        "train --config ids.toml --dataset dataset --out run",
        ["features for train", "train", "choice of baselines", "item-kNN"],
        "run: 1 epochs of ",
        "export --run run --out bundle",
    ),
    "tune": (
        "tune --config ids.toml --dataset dataset --out tuned.toml --trials 1",
        ["trials", "finals"],
        "tuned.toml: recall@20 ",
        "train --dataset dataset --config tuned.toml --out run",
    ),
    "export": (
        "export --run run --out bundles/first",
        ["read the run", "encode users", "encode items", "save towers"],
        "bundles/first: 717 items, 60 users, 8 dimensions, model ",
        "index --bundle bundles/first",
    ),
    "index": (
        "index --bundle bundles/first --kind scann --target-recall 0.5",
        ["exact search", "build ScaNN", "tune", "measure"],
        "bundles/first: scann index, recall@100 ",
        "serve --bundle bundles/first",
    ),
    "report": (
        "report --bundle bundles/first --dataset dataset --out report",
        ["choice of baselines", "item-kNN", "evaluate", "intervals", "page"],
        "report/report.html: ",
        "tune --dataset dataset --budget-minutes 20 --out tuned.toml",
    ),
    "recall": (
        "recall --bundle bundles/first --k 10 --out recalled.parquet",
        ["search", "write"],
        "recalled.parquet: 60 users, the best 10 items of each",
        "query --bundle bundles/first --user {user}",
    ),
    "compare": (
        "compare bundles/first copy --dataset dataset --out comparison",
        ["evaluate", "tests"],
        "comparison/compare.html: ",
        "look --bundle bundles/first --bundle copy --dataset dataset",
    ),
    "gate": (
        "gate rules.toml --candidate bundles/first",
        ["verify", "probe", "judge"],
        "blessed as a new model: bundles/first; ",
        "bundles activate first --root bundles",
    ),
    "activate": (
        "bundles activate first --root bundles",
        ["verify", "probe"],
        "active: first (model ",
        "serve --bundle bundles",
    ),
    "fold": (
        "bundles fold --bundle bundles/first --state state --out folded",
        ["verify", "read changes", "write"],
        "",
        "index --bundle folded",
    ),
    "events export": (
        "events export --state state --out exported",
        ["read", "write"],
        "exported: 0 events, ",
        "prepare --events exported --out dataset",
    ),
    "forget": (
        "forget --user u000001 --bundle bundles --dry-run",
        ["look and remove"],
        "",
        "forget --user u000001 --bundle bundles",
    ),
}


def towers(words: str) -> None:
    """Gives a command in this process."""
    before, sys.argv = sys.argv, ["towers", *words.split()]
    try:
        with pytest.raises(SystemExit) as ended:
            app.main()
    finally:
        sys.argv = before
    assert not ended.value.code, words


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Streams]]:
    """What each command wrote to two files, given one after another in a folder that stays the current one."""
    folder, before = tmp_path_factory.mktemp("progress"), Path.cwd()
    os.chdir(folder)
    (folder / "bundles").mkdir()
    (folder / "ids.toml").write_text(RECIPE)
    (folder / "rules.toml").write_text("[index]\nat_least = 0.1\n")
    told = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "LEAST_INTERVAL_S", math.inf)  # no line between, however slow the machine is
        patch.setattr(console, "MOST_INTERVAL_S", math.inf)
        for name, (words, *_) in COMMANDS.items():
            if name == "compare":
                shutil.copytree("bundles/first", "copy")
            if name == "fold":
                Journal.open(folder / "state").close()
            with streams() as told[name]:
                towers(words)
    yield told
    os.chdir(before)


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_names_its_phases_ends_with_its_result_and_the_next_command(
    name: str, said: dict[str, Streams]
) -> None:
    _, phases, result, following = COMMANDS[name]
    following = following.format(user=pl.read_parquet("recalled.parquet")["user_id"].first())
    lines = said[name].err.splitlines()
    heads = [line for line in lines if line == f"{name}: {', '.join(phases)}"]
    assert len(heads) == bool(phases), lines
    # A line of a bar names a phase of the first line; one phase alone needs no such line.
    assert not phases or {match[1] for match in map(BAR.fullmatch, lines) if match} <= {*phases}, lines
    assert [sum(line.startswith(f"{phase}: ") for line in lines) for phase in phases] == [
        # The line that names the phases of `train` begins like that of its phase `train`.
        1 + (phase == name)
        for phase in phases
    ], lines
    assert not result or [line for line in lines if line.startswith(result)], lines
    assert [line for line in lines if line.startswith("next: ")] == [f"next: {console.towers()} {following}"]
    assert lines[-1].startswith("next: ")


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_terminal_there_are_neither_control_characters_nor_messages_of_libraries(
    name: str, said: dict[str, Streams]
) -> None:
    both = said[name].out + said[name].err
    assert CONTROL.findall(both) == []
    assert [line for line in both.splitlines() if NOISE.search(line)] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("check", "features: 2 features in "),  # the ids of users and items
        ("train", "features for train: 2 features in "),
        ("export", "encode items: 1,000 items in "),
        ("index", "exact search: {users} queries in "),  # of each user with a vector
        ("index", "measure: {twice} queries in "),  # one at a time, then all at once
        ("recall", "write: 600 rows in "),
    ],
)
def test_a_bar_counts_to_the_end(name: str, line: str, said: dict[str, Streams]) -> None:
    users = int(Bundle.open(Path("copy")).query_vectors.any(axis=1).sum())
    line = line.format(users=users, twice=2 * users)
    assert [each for each in said[name].err.splitlines() if each.startswith(line)], said[name].err


@pytest.mark.long
def test_stdout_holds_results_only(said: dict[str, Streams]) -> None:
    assert {name for name, told in said.items() if told.out} == {
        "check", "tune", "report", "compare", "gate", "forget"
    }  # fmt: skip
    assert said["forget"].out.startswith("bundles/first: would remove stored users 1, ")
    assert json.loads(Path("report/report.json").read_text())["verdict"]["text"] == said["report"].out.splitlines()[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "bars"),
    [
        ("prepare --events world --out dataset --overwrite", COMMANDS["prepare"][1]),
        ("index --bundle bundles/first --kind scann --target-recall 0.5", COMMANDS["index"][1]),
        ("bundles activate first --root bundles", COMMANDS["activate"][1]),
        ("forget --user u000001 --bundle bundles", COMMANDS["forget"][1]),
    ],
)
def test_a_terminal_shows_one_bar_for_each_phase(words: str, bars: list[str], said: dict[str, Streams]) -> None:
    with streams(terminal=True) as shown:
        towers(words)
    assert CONTROL.search(shown.err)
    plain = ESCAPES.sub("", shown.err)
    assert [bar for bar in bars if not re.search(rf"{re.escape(bar)} ━+ 100%", plain)] == []
    assert NOISE.findall(plain) == []
    assert plain.splitlines()[-1].startswith(f"next: {console.towers()} ")
    # Results are whole in their file though bars are shown.
    assert CONTROL.findall(shown.out) == []
    assert ("removed stored users 1" in shown.out) == words.startswith("forget")
