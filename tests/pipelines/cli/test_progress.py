"""What a long command says: its phases once, no start-up messages, where the result lies, and what to give next."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from pipelines import console
from pipelines.cli import app
from pipelines.dataset.dataset import Dataset
from serving.bundle.reader import Bundle
from serving.catalogue.journal import Impression, UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from tests.support.terminal import CONTROL, ESCAPES, Streams, streams

# Lines of libraries on their own: absl, TensorFlow's and CUDA's start, Python's warnings.
NOISE = re.compile(r"^[IWEF]\d{4} |absl::|tensorflow|CUDA|cuda|oneDNN|TF_|Warning|Partitioner", re.MULTILINE)
BAR = re.compile(r"([^:]+): (?:([\d,]+) \w+ in [\d.]+ s, .*|[\d.]+ s)")
STEP = re.compile(r"([^:]+): [\d,]+ of ([\d,]+) (\w+), [\d.,]+ \3/s")
# Searches end as soon as nothing better is found, and users take an item once: their totals are the most that they do.
AT_MOST = {"choice of baselines", "tune", "trials", "finals", "make events"}
WITHOUT_TOTALS = {"synth", "tune", "state backup", "track"}  # those alone, one step, or no count
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
        ["read items.parquet", "read users.parquet", "read events", "filter and split", "sort and write"],
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
        "run: 1 epoch of ",
        "export --run run --out bundle",
    ),
    "tune": (
        "tune --config ids.toml --dataset dataset --out tuned.toml --trials 1",
        ["trials", "finals"],
        "tuned.toml: recall@20 ",
        "train --dataset dataset --config tuned.toml --out run-2",
    ),
    "export": (
        "export --run run --out bundles/first",
        ["read the run", "encode users", "encode items", "write", "save towers", "read back"],
        "bundles/first: 717 items, 60 users, 8 dimensions, model ",
        "index --bundle bundles/first",
    ),
    "index": (
        "index --bundle bundles/first --kind scann --target-recall 0.5",
        ["verify", "exact search", "build ScaNN", "tune", "measure"],
        "bundles/first: scann index, recall@100 ",
        "serve --bundle bundles/first",
    ),
    "report": (
        "report --bundle bundles/first --dataset dataset --out report",
        [
            "verify",
            "choice of baselines",
            "item-kNN",
            "evaluate",
            "intervals",
            "findings",
            "index curve",
            "page",
        ],
        "report/report.html: ",
        "tune --dataset dataset --budget-minutes 20 --out tuned.toml",
    ),
    "recall": (
        "recall --bundle bundles/first --k 10 --out recalled.parquet",
        ["verify", "search", "write"],
        "recalled.parquet: 60 users, the best 10 items of each",
        "query --bundle bundles/first --user {user}",
    ),
    "embed": (
        "embed --bundle bundles/first --items world/items.parquet --out vectors.parquet",
        ["verify", "read", "encode", "write"],
        "vectors.parquet: 1,000 vectors of 8 numbers",
        "serve --bundle bundles/first",
    ),
    "compare": (
        "compare bundles/first copy --dataset dataset --out comparison",
        ["verify", "evaluate", "tests"],
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
        ["verify", "read changes", "write", "read back"],
        "folded: 717 items (before: 717), 0 of them new or changed, 60 users",
        "index --bundle folded",
    ),
    "events export": (
        "events export --state state --out exported",
        ["read", "write"],
        "exported: 3 events, ",
        "prepare --events exported --out dataset-2",
    ),
    "state backup": (
        "state backup --state state --out saved",
        ["copy"],
        "saved: ",
        "state restore --backup saved --state restored",
    ),
    "state restore": (
        "state restore --backup saved --state restored",
        ["copy", "read"],
        "restored: 0 changed items, 3 events, 2 impressions",
        "serve --bundle bundle --state restored",
    ),
    "state move": (
        "state move --state state --to moved",
        ["copy"],
        "moved: 0 changed items, 3 events, 2 impressions",
        "serve --bundle bundle --state moved",
    ),
    "track": (
        "track --report report --bundle bundles/first",
        ["read", "TensorBoard"],
        "report/tensorboard: ",
        "tensorboard --logdir report",
    ),
    "forget": (
        "forget --user u000001 --bundle bundles --dry-run",
        ["verify", "look and remove"],
        "",
        "forget --user u000001 --bundle bundles",
    ),
}


def towers(words: str, *, terminal: bool = False) -> Streams:
    """Gives a command in this process and catches what it writes."""
    before, sys.argv = sys.argv, ["towers", *words.split()]
    try:
        with streams(terminal=terminal) as written, pytest.raises(SystemExit) as ended:
            app.main()
    finally:
        sys.argv = before
    assert not ended.value.code, f"{words}\n{written.err}"
    return written


class Said(NamedTuple):
    """What a command wrote: to stdout, to stderr, and there between the first and the last step of its bars."""

    out: str
    err: str
    steps: list[str]

    @classmethod
    def of(cls, told: Streams) -> "Said":
        lines = told.err.splitlines(keepends=True)
        return cls(
            told.out,
            "".join(line for line in lines if not STEP.match(line)),
            [line for line in lines if STEP.match(line)],
        )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Said]]:
    """What each command wrote to two files, given one after another in a folder that stays the current one."""
    folder = tmp_path_factory.mktemp("progress")
    (folder / "bundles").mkdir()
    (folder / "ids.toml").write_text(RECIPE)
    (folder / "rules.toml").write_text("[index]\nat_least = 0.1\n")
    told = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(console, "LEAST_INTERVAL_S", 0.0)  # a line after each step but the last
        patch.setattr(console, "MOST_INTERVAL_S", 0.0)
        for name, (words, *_) in COMMANDS.items():
            if name == "compare":
                shutil.copytree("bundles/first", "copy")
            if name == "fold":
                journal = SqliteJournal.open(folder / "state")
                journal.add_events([UserEvent(f"e{n}", f"u{n}", "i000001", 1_700_000_000 + n) for n in range(3)])
                shown = ("i000001", "i000002")
                journal.add_impressions([Impression(f"s{n}", "r", "u9", shown, 1_700_000_000) for n in range(2)])
                journal.close()
            told[name] = Said.of(towers(words))
        yield told


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_names_its_phases_ends_with_its_result_and_the_next_command(name: str, said: dict[str, Said]) -> None:
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
    program, _, given = following.partition(" ")
    command = f"{console.towers(program)} {given}" if name == "track" else f"{console.towers()} {following}"
    assert [line for line in lines if line.startswith("next: ")] == [f"next: {command}"]
    assert lines[-1].startswith("next: ")


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_bar_ends_with_the_total_that_it_begins_with(name: str, said: dict[str, Said]) -> None:
    ended = {match[1]: match[2] for match in map(BAR.fullmatch, said[name].err.splitlines()) if match}
    totals = {match[1]: match[2] for match in map(STEP.match, said[name].steps) if match and match[1] not in AT_MOST}
    assert {phase: ended[phase] for phase in totals} == totals
    assert bool(totals) or name in WITHOUT_TOTALS


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_terminal_there_are_neither_control_characters_nor_messages_of_libraries(
    name: str, said: dict[str, Said]
) -> None:
    both = said[name].out + said[name].err
    assert CONTROL.findall(both) == []
    assert [line for line in both.splitlines() if NOISE.search(line)] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("check", "recipe: 9 checks in "),
        ("check", "leaks: {read} events in "),
        ("check", "features: 2 features in "),  # the ids of users and items
        ("train", "features for train: 2 features in "),
        ("export", "encode items: 1,000 items in "),
        ("export", "write: {rows} rows in "),
        ("index", "verify: {megabytes} MB in "),
        ("index", "exact search: {users} queries in "),  # of each user with a vector
        ("index", "measure: {twice} queries in "),  # one at a time, then all at once
        ("recall", "write: 600 rows in "),
        ("embed", "encode: 1,000 rows in "),
        ("embed", "write: 1,000 rows in "),
        ("report", "intervals: {resamples} resamples in "),
        ("report", "findings: 9 checks in "),
        ("report", "index curve: {searches} queries in "),
        ("compare", "verify: {both} MB in "),
        ("fold", "write: {rows} rows in "),
        ("events export", "read: 5 rows in "),
        ("events export", "write: 11 rows in "),  # 3 events, 4 items shown and not taken, 4 items shown
        ("state restore", "read: 5 rows in "),
        ("state move", "copy: 5 rows in "),
    ],
)
def test_a_bar_counts_to_the_end(name: str, line: str, said: dict[str, Said]) -> None:
    line = line.format(**{key: f"{count:,.0f}" for key, count in counts().items()})
    assert [each for each in said[name].err.splitlines() if each.startswith(line)], said[name].err


def counts() -> dict[str, float]:
    """What some bars count to, from the files that their commands left."""
    bundle, content = Bundle.open(Path("copy")), json.loads(Path("report/report.json").read_text())
    events, manifest = Dataset.open(Path("dataset")).manifest.events, bundle.manifest
    users, curve = int(bundle.query_vectors.any(axis=1).sum()), content["index_curve"]
    # A slice of all targets of all users has the resamples of all.
    every = content["counts"]["users"]
    slices = [each for each in [*content["slices"].values(), content["new_items"]] if each["users"]]
    sliced = [each for each in slices if each["users"] < every or "ndcg@20" not in each["metrics"]["exact"]]
    size = sum(file.bytes for name, file in manifest.files.items() if not name.startswith("index/")) / 1e6
    index = sum(file.bytes for name, file in manifest.files.items() if name.startswith("index/")) / 1e6
    dataset = sum(path.stat().st_size for path in Path("dataset").rglob("*") if path.name != "dataset.json") / 1e6
    return {
        "users": users,
        "twice": 2 * users,
        # Histories read the training events, rows, cut-offs and pairs all of them.
        "read": events["train"] + 3 * sum(events.values()),
        # Ids, attributes and vectors of items; ids, vectors and seen items of users.
        "rows": 3 * manifest.items + 3 * manifest.queries,
        "megabytes": size,
        "both": 2 * (size + index) + dataset,
        "resamples": 1_000 * (1 + len(sliced)) + 100 * len(content["metrics"]),
        # Each setting searches all queries four times and 200 of them one by one; exact search all once.
        "searches": (1 + len(curve["points"])) * min(200, users) + (1 + 4 * len(curve["points"])) * curve["queries"],
    }


@pytest.mark.long
def test_stdout_holds_results_only(said: dict[str, Said]) -> None:
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
def test_a_terminal_shows_one_bar_for_each_phase(words: str, bars: list[str], said: dict[str, Said]) -> None:
    shown = towers(words, terminal=True)
    assert CONTROL.search(shown.err)
    plain = ESCAPES.sub("", shown.err)
    assert [bar for bar in bars if not re.search(rf"{re.escape(bar)} ━+ 100%", plain)] == []
    assert NOISE.findall(plain) == []
    assert plain.splitlines()[-1].startswith(f"next: {console.towers()} ")
    # Results are whole in their file though bars are shown.
    assert CONTROL.findall(shown.out) == []
    assert ("removed stored users 1" in shown.out) == words.startswith("forget")
