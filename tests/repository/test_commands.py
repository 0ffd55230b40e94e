"""Every command of the pages ends with exit status 0; options, links and the list of pages are right."""

import ast
import itertools
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import typer

import pipelines
import serving
import towers
from pipelines.cli import app
from tests.support.object_store import ObjectStore, local_s3
from tests.support.pages.programs import program
from tests.support.paths import ROOT
from tests.support.processes.running_service import RunningService

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FACES = {face.__name__: face for face in (pipelines, serving, towers)}
LANGUAGES = {"sh", "python", "text", "toml", "json", "yaml", "promql"}
# The pages that other tests type, and commands that no test gives.
TYPED = {
    "docs/tutorial.md": "tests/processes/test_tutorial.py",
    "docs/model/public.md": "tests/pipelines/ingest/formats/test_public.py",
}
LEFT_OUT = {
    "make demo": "downloads the libraries; its parts, `towers demo` and the steps of this page, are tested",
    "make test": "runs these tests",
    "towers look": "answers until Ctrl-C; tests/pipelines/bundles/test_look.py gives it",
    "towers forget": "removes a user for whom other pages ask; tests/pipelines/forget gives it",
    "towers train --devices": "needs a process that has not used TensorFlow; "
    "tests/pipelines/training/test_local_workers.py starts one",
    "rsync": "copies to another machine",
    "cd towers": "on that machine",
    "TF_CONFIG=": "waits for the other machine; tests/pipelines/training/test_local_workers.py starts two processes",
    "towers track": "needs a server of MLflow; tests/pipelines/launch/test_tracking.py starts one",
    "towers tune": "searches for an hour; tests/pipelines/tuning gives it seconds",
}
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}


def commands(page: str) -> list[str]:
    """The commands of the shell blocks of a page: continued lines joined, comments and those of `LEFT_OUT` removed."""
    blocks = [text for language, text in FENCE.findall(PAGES[page]) if language == "sh"]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines = [re.sub(r"^KEY=\$\((.*?)\)", r"\1", line) for line in lines]  # `Shell` keeps the key
    lines = [line.removeprefix(".venv/bin/") for line in lines if line.strip() and not line.startswith("#")]
    return [line for line in lines if not line.startswith(tuple(LEFT_OUT))]


class Shell:
    """Runs the commands of a page in a folder, one after another: `towers` in this process, services beside it."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.capture, self.patch = capture, patch
        self.service: RunningService | None = None
        self.key = ""

    def run(self, line: str) -> None:
        words = [word for word in shlex.split(line, comments=True) if word != "&"]
        if words[:2] == ["towers", "serve"]:
            self.serve(words[2:])
        elif words[0] == "towers":
            self.towers(words[1:])
        else:
            assert words[0] == "curl", f"{line}: neither towers nor curl; run it here or name it in LEFT_OUT"
            fails = "" if "--fail" in words else " --fail-with-body"
            done = subprocess.run(
                ["bash", "-c", self._here(line).replace("curl", f"curl --silent --show-error{fails}", 1)],
                env=os.environ | {"KEY": self.key},
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)

    def towers(self, words: list[str]) -> None:
        words = [self._here(word) for word in words]
        if "--out" in words and "--shard" not in words:
            made = Path(words[words.index("--out") + 1])  # by the page before
            if made.is_file():
                made.unlink()
            shutil.rmtree(made, ignore_errors=True)
        self.patch.setattr(sys, "argv", ["towers", *words])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        said = self.capture.readouterr()
        assert not ended.value.code, (words, said.err)
        if words[:2] == ["keys", "add"] and not self.key:
            self.key = said.out.split()[-1]

    def serve(self, words: list[str]) -> None:
        options = ["--window"] if "--window" in words else []
        words = [word for word in words if word not in options]
        given = dict(zip(words[::2], words[1::2], strict=True))
        given.pop("--port", None)
        self.stop()
        bundle, workers = given.pop("--bundle"), int(given.pop("--workers", "1"))
        self.service = RunningService(
            bundle, workers=workers, options=[*options, *(word for pair in given.items() for word in pair)]
        )

    def stop(self) -> None:
        if self.service is not None:
            self.service.kill()

    def _here(self, text: str) -> str:
        return (
            text
            if self.service is None
            else re.sub(r"(localhost|127\.0\.0\.1):8000", f"127.0.0.1:{self.service.port}", text)
        )


def write_world(folder: Path) -> None:
    """Events, items and users with the ids and columns that the pages name, and the recipes."""
    draw = random.Random(1)
    users = ["u1", "42", "196", *(f"u{n}" for n in range(2, 200))]
    items = ["17", "50", "318", "42", "i1", "i7", *(f"i{n}" for n in range(8, 120))]
    rows = [(draw.choice(users), draw.choice(items), 1_700_000_000 + 600 * n) for n in range(6_000)]
    pl.DataFrame(rows, ["user_id", "item_id", "time"], orient="row").write_csv(folder / "events.csv")
    kinds = {
        "genres": ["drama|comedy", "comedy|war", "war|drama"],
        "movie_title": ["The heat", "A day", "Of rain"],
        "release_year": [1994, 1995, 2001],
        "title": ["Heat", "Day", "Rain"],
    }
    frame = {"item_id": items, **{name: [values[n % 3] for n in range(len(items))] for name, values in kinds.items()}}
    pl.DataFrame(frame).write_csv(folder / "items.csv")
    countries = [("FR", "DE", "IT")[n % 3] for n in range(len(users))]
    pl.DataFrame({"user_id": users, "country": countries}).write_csv(folder / "users.csv")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    shutil.copyfile(ROOT / "recipes" / "default.toml", folder / "recipe.toml")
    (folder / "bundles").mkdir()
    rule = '[[metrics]]\nmetric = "recall@20"\nrelative = "difference"\nbound = "low"\nat_least = -0.5\n'
    (folder / "bundles" / "rules.toml").write_text(rule)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """What the pages call ``s3://bucket``."""
    with local_s3() as store:
        yield store


@pytest.mark.slow
@pytest.mark.long
def test_every_command_of_the_pages_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: ObjectStore
) -> None:
    write_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store.system.mkdir("bucket")
    shell = Shell(capsys, monkeypatch)
    pages = [page for page in PAGES if page not in TYPED]
    assert pages[0] == "README.md", "makes the data set, run and bundle of all other pages"
    try:
        for page in pages:
            for line in commands(page):
                shell.run(line)
            shell.stop()
            if page == "README.md":
                shutil.copytree("bundle", "new")
                shutil.copytree("bundle", "bundles/2026-11-13")
                shell.run("towers bundles activate 2026-11-13 --root bundles")
                shell.run("towers serve --bundle bundle --state state")
                shell.stop()
        # docs/model/training.md shows how to look at a batch; this data set has fewer than 36.
        exec(program("docs/model/training.md", "batch.run", {"step=36": "step=0"}), {})
    finally:
        shell.stop()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_its_language_and_every_shell_command_is_run_or_left_out(page: str) -> None:
    blocks = FENCE.findall(PAGES[page])
    assert len(blocks) * 2 == len(re.findall("^```", PAGES[page], re.MULTILINE))
    assert {language for language, _ in blocks} <= LANGUAGES
    # What is no shell block holds no command.
    others = [line for language, text in blocks if language != "sh" for line in text.splitlines()]
    command = re.compile(r"(\$ |\.venv/bin/)?(towers|curl|make|docker|pip|python) [\w-]")
    assert [line for line in others if command.match(line)] == []
    if page not in TYPED:
        assert {line.split()[0] for line in commands(page)} <= {"towers", "curl"}
        # A command is run as it stands: DATASET and the like are for sentences and for what is left out.
        assert [line for line in commands(page) if re.match(r"towers .* [A-Z]+(\.toml)?\b", line)] == []


def test_each_exception_is_in_use() -> None:
    blocks = [text for page in PAGES.values() for language, text in FENCE.findall(page) if language == "sh"]
    lines = [line.removeprefix(".venv/bin/") for block in blocks for line in block.splitlines()]
    for beginning in LEFT_OUT:
        assert any(line.startswith(beginning) for line in lines), beginning
    for page, test in TYPED.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def test_each_python_block_has_a_test_that_runs_it() -> None:
    taken = sorted(itertools.chain.from_iterable(map(programs, (ROOT / "tests").rglob("test_*.py"))))
    blocks = {page: [text for kind, text in FENCE.findall(PAGES[page]) if kind == "python"] for page in PAGES}
    assert taken == sorted((page, text) for page, texts in blocks.items() for text in texts)


def programs(test: Path) -> Iterator[tuple[str, str]]:
    """Page and text of each program that a test file asks `program` for."""
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name("program"), args=[ast.Constant(str(page)), ast.Constant(str(word)), *_]):
                yield page, program(page, word)


@pytest.mark.parametrize("page", PAGES)
def test_python_imports_what_the_face_of_a_package_names(page: str) -> None:
    statements = [
        node
        for language, text in FENCE.findall(PAGES[page])
        if language == "python"
        for node in ast.walk(ast.parse(text))
    ]
    for node in statements:
        if isinstance(node, ast.Import):
            assert not {name.name.partition(".")[0] for name in node.names} & set(FACES), ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in FACES:
            assert node.module in FACES, ast.unparse(node)
            assert {name.name for name in node.names} <= set(FACES[node.module].__all__), ast.unparse(node)


@pytest.mark.parametrize("page", PAGES)
def test_a_command_in_a_sentence_names_a_verb_and_options_that_exist(page: str) -> None:
    group = typer.main.get_command(app.app)
    for text in re.findall(r"`(towers [^`]+)`", PAGES[page]):
        command, words = group, text.split()[1:]
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, text
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word.strip("[]") for word in words if word.strip("[").startswith("--")} <= known, text


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", PAGES[page])):
        name, _, anchor = target.partition("#")
        if "://" in name:
            continue
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), target


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_list_of_pages_names_each_once() -> None:
    listed = re.findall(r"^- \[[^\]]+\]\(([\w./]+)\)", PAGES["docs/README.md"], re.MULTILINE)
    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith("docs/") and page != "docs/README.md"]
    assert sorted(listed) == sorted(pages)
    assert listed[0] == "tutorial.md"
    assert "(docs/README.md)" in PAGES["README.md"]
