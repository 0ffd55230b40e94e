"""Progress of long steps: lines without a terminal, bars on one, and results that stay on stdout."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines import console
from tests.support.terminal import CONTROL, ESCAPES, streams


def test_a_long_step_prints_ever_fewer_lines_the_longer_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    told: list[tuple[float, str]] = []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console, "say", lambda line: told.append((now[0], line)))
    with console.progress("train", total=7_200, unit="examples") as advance:
        for _ in range(7_200):
            now[0] += 1
            advance(1)
    *lines, last = told
    assert last == (7_200, "train: 7,200 examples in 7200.0 s, 1.0 examples/s")
    assert lines[0] == (5, "train: 5 of 7,200 examples, 1.0 examples/s, 7,195 s left")
    moments = [moment for moment, _ in lines]
    gaps = [after - before for before, after in zip([0, *moments], moments, strict=False)]
    assert min(gaps) == 5 and max(gaps) == 60 and gaps == sorted(gaps)
    assert all(gap <= max(5, 0.1 * moment + 1) for gap, moment in zip(gaps, moments, strict=True))


def test_a_rate_below_ten_keeps_a_decimal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    told: list[str] = []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console, "say", told.append)
    for count in (20, 10_000):
        with console.progress("choice", total=None, unit="settings") as advance:
            advance(count, note="best 0.2")
            now[0] += 40
    assert told == [
        "choice: 20 settings in 40.0 s, 0.5 settings/s, best 0.2",
        "choice: 10,000 settings in 40.0 s, 250 settings/s, best 0.2",
    ]


@pytest.mark.parametrize(
    ("number", "nouns", "told"),
    [(0, "users", "0 users"), (1, "users", "1 user"), (1_204, "bad rows", "1,204 bad rows"), (1, "queries", "1 query")],
)
def test_a_number_has_its_noun(number: int, nouns: str, told: str) -> None:
    assert console.amount(number, nouns) == told


def test_one_step_is_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    told: list[str] = []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console, "say", told.append)
    with console.progress("train", total=None, unit="epochs") as advance:
        now[0] += 10
        advance()
    assert told == ["train: 1 epoch, 0.1 epochs/s", "train: 1 epoch in 10.0 s, 0.1 epochs/s"]


def test_a_bar_needs_no_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    with streams(terminal=True) as shown, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)  # as after >&-
        with console.progress("read", total=1, unit="rows") as advance:
            advance(1)
    assert "100%" in ESCAPES.sub("", shown.err)


def test_a_terminal_shows_a_bar_and_lines_above_it_and_a_result_goes_to_its_file() -> None:
    with streams(terminal=True) as shown:
        with console.progress("read events", total=40, unit="rows") as advance:
            advance(40, note="loss 1.5")
            console.say("epoch 1")
            sys.stdout.write("a result\n")
        with console.phase("write"):
            os.write(2, b"from C++\n")
    assert shown.out == "a result\n"
    assert CONTROL.search(shown.err)
    plain = ESCAPES.sub("", shown.err)
    # The rate of the whole phase, though it was told of its end alone.
    assert re.search(r"read events ━+ 100% [\d,.]+ rows/s .*loss 1.5", plain)
    assert re.search(r"write ━+ 100%", plain)
    assert "epoch 1" in plain and "from C++" in plain


@pytest.mark.parametrize("sizes", [(1.0,), (0.1, 0.2), (63.35046322533688,)])
def test_the_finished_bar_is_full_whatever_its_parts_add_up_to(sizes: tuple[float, ...]) -> None:
    with streams(terminal=True) as shown, console.progress("verify", total=sum(sizes) + 0.01, unit="MB") as advance:
        for size in sizes:
            advance(size)
    assert ESCAPES.sub("", shown.err).splitlines()[-1].count("━") == 40


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_ends_a_bar_early_leaves_a_line_of_its_own_and_the_cursor(error: type[BaseException]) -> None:
    with streams(terminal=True) as shown:
        with pytest.raises(error), console.progress("read", total=4, unit="rows") as advance:
            advance(1)
            raise error
        console.say("error: at the left")
    assert shown.err.rindex("\x1b[?25h") > shown.err.rindex("\x1b[?25l")
    before, last = ESCAPES.sub("", shown.err).splitlines()[-2:]
    assert re.fullmatch(r". read ━+╺?━* +25% .*", before.rpartition("\r")[2]) and last == "error: at the left"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Ünë 日本\u3000🎬", "Ünë 日本\u3000🎬"),
        ("\x1b[31m\tred\r", r"\x1b[31m\tred\r"),
        ("\u202ea\x9b\u2028\udcff", r"\u202ea\x9b\u2028\udcff"),
        ("a\nb", r"a\nb"),
        *[
            (same, same)
            for same in ("می\u200cخواهم", "soft\u00adhyphen", "\u200fא", "🏴\U000e0067\U000e007f", "\ue000")
        ],
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, told: str) -> None:
    assert console.printable(text) == told


def test_a_line_keeps_its_own_breaks_and_shows_no_other_control(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("columns:\n  title \x1b[31m\r")
    assert capsys.readouterr().err == "columns:\n  title \\x1b[31m\\r\n"


@pytest.mark.parametrize("path", ["bundles/v1", "my bundle", "it's", "$HOME;ls"])
def test_the_next_command_is_quoted_for_a_shell(path: str) -> None:
    with streams() as shown:
        console.next_step("index --bundle", Path(path), "--kind exact")
    (line,) = shown.err.splitlines()
    assert shlex.split(line)[2:] == ["index", "--bundle", path, "--kind", "exact"]
    assert line.startswith("next: ")


def test_towers_is_called_by_its_path_where_its_name_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert console.towers() == "towers"  # neither on PATH nor beside the interpreter: as the pages write it
    (tmp_path / "bin" / "towers").touch(mode=0o755)
    assert console.towers() == "towers"
    monkeypatch.setenv("PATH", "")
    assert console.towers() == str(tmp_path / "bin" / "towers")
    monkeypatch.chdir(tmp_path)
    assert console.towers() == "bin/towers"
    (tmp_path / "bin").rename(tmp_path / "my bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my bin" / "python"))
    assert shlex.split(console.towers()) == ["my bin/towers"]


def test_a_name_to_suggest_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    suggested = []
    for _ in range(3):
        suggested.append(console.free("run"))
        Path(suggested[-1]).mkdir()
    assert suggested == ["run", "run-2", "run-3"]


NOISE = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1795388593.495097   12791 kmeans_tree_partitioner_utils.h:90] PartitionerFactory ran in 2.14ms.\n"
    b"W1122 21:03:04.493880   12791 gmm_utils.cc:1026] Could not normalize centroid due to zero norm.\n"
)
KEPT = (
    b"E0000 00:00:1795388593.493880   12791 scann.cc:12] no memory\n"
    b"WARNING: the disk is nearly full\nI0000 is an item\n\xff not text\n"
)


def crash(body: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs a body, in a process, under the filter."""
    code = (
        f"import os\nfrom pipelines.rankers.scann_log import without_scann_log\nwith without_scann_log():\n    {body}"
    )
    words = [sys.executable, "-c", f"{code}\nos.write(2, {NOISE!r})"]
    return subprocess.run(words, capture_output=True, timeout=60, check=False)


def test_only_the_log_lines_of_scann_are_dropped_and_only_within() -> None:
    done = crash(f"os.write(2, {NOISE + KEPT + NOISE!r}); os.write(2, b'no end')")
    assert done.returncode == 0
    assert done.stderr == KEPT + b"no end" + NOISE


def test_the_last_words_of_a_crash_arrive() -> None:
    words = b"F0000 00:00:1795388593.493880   12791 scann.cc:12] Check failed: a == b\n*** SIGABRT ***"
    done = crash(f"os.write(2, {NOISE + words!r}); os.abort()")
    assert done.returncode == -signal.SIGABRT
    assert done.stderr == words
