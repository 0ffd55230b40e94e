"""The pictures of docs/service/window.md, and whether they still show the page as it is.

TOWERS_SCREENSHOTS=1 makes them anew, of the small data set in `tests/golden` and two models of it. Beside them lies
what tells when they are out of date: a digest of the style and of the HTML of a fixed world.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from PIL import Image
from playwright.sync_api import Browser

from serving.bundle.reader import Bundle
from serving.http.requests import query_of
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.settings import Settings
from serving.window.form import Form
from serving.window.page import Beside, Page
from serving.window.routes import static
from tests.serving.window.conftest import attributes, write_second
from tests.support.paths import ROOT
from tests.support.worlds.serving import ArithmeticEncoder, no_towers, write_world

GOLDEN, PLOTS, DOCS = ROOT / "tests" / "golden", ROOT / "docs" / "plots", ROOT / "docs" / "service" / "window.md"
DIGEST = PLOTS / "window.sha256"
COMMAND = "TOWERS_SCREENSHOTS=1 pytest tests/serving/window/test_pictures.py"
# What the pictures show: reasons, hits and what differs; the steps of a filter, an exclusion and diversity.
QUESTIONS: list[dict[str, str]] = [
    {"user": "u1", "k": "5"},
    {
        "history": "i2\ni6\ni10", "k": "4", "column": "created", "op": "gte", "value": "2022-02-24", "exclude": "i14",
        "diversity": "kind", "most": "1",
    },
]  # fmt: skip


def opened(path: Path) -> Recaller:
    bundle = Bundle.open(path)
    return Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder())


def look_of_the_page(directory: Path) -> str:
    """A digest of the style and the HTML, without numbers, versions and line ends."""
    # Without TensorFlow.
    write_world(directory / "a", write_towers=no_towers, item_attributes=attributes())
    first, second = opened(directory / "a"), opened(write_second(directory / "a", directory / "b"))
    active = SimpleNamespace(answering={"active": SimpleNamespace(opened=first)})
    settings = Settings(bundle=first.bundle.path)
    service = SimpleNamespace(active_bundles=active, pick=lambda user: first, refused_for_callers={}, settings=settings)
    asks = partial(query_of, settings=settings)
    digest = hashlib.sha256(static("window.css"))
    page = Page(service, asks, Beside(second, lambda user: ["i9", "i13"]))  # type: ignore[arg-type]
    for fields in QUESTIONS:
        html = page.render(Form(fields), "")
        html = re.sub(r'<section aria-labelledby="health-head">.*?</section>', "", html, flags=re.DOTALL)
        digest.update(re.sub(r"\s+", " ", re.sub(r"\d+", "0", html)).encode())
    return digest.hexdigest()


def towers(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "pipelines", *map(str, words)], check=True)


@contextmanager
def look(*words: object) -> Iterator[str]:
    """Runs `towers look`; gives its address."""
    command = [sys.executable, "-m", "pipelines", "look", *map(str, words), "--no-open"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield next(line for line in process.stderr if "Ctrl-C ends it" in line).split()[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def bundle_of(golden: Path, epochs: int, out: Path) -> Path:
    """A model of the small data set; the golden one has seen it once and knows next to nothing."""
    longer = [f"train.epochs={epochs}", f"train.patience={epochs}", "model.dimension=16"]
    changes = [word for change in longer for word in ("--set", change)]
    dataset, config = golden / "dataset", golden / "run" / "config.toml"
    towers("train", "--dataset", dataset, "--config", config, *changes, "--out", out / "run")
    towers("export", "--run", out / "run", "--out", out / "bundle")
    towers("index", "--bundle", out / "bundle", "--kind", "scann")
    return out / "bundle"


# Before the tests that compare: one run of this file makes them pass.
@pytest.mark.skipif("TOWERS_SCREENSHOTS" not in os.environ, reason="TOWERS_SCREENSHOTS asks for pictures")
def test_the_pictures_of_the_docs(browser: Browser, tmp_path: Path) -> None:
    golden = shutil.copytree(GOLDEN, tmp_path / "golden")
    old, new = bundle_of(golden, 4, tmp_path / "old"), bundle_of(golden, 12, tmp_path / "new")
    user = {"user": "u000031"}
    left_out = {"column": "created", "op": "gte", "value": "2022-01-01", "exclude": "i000887"}
    steps = user | left_out | {"k": "10", "diversity": "category", "most": "2"}
    trace = "section[aria-labelledby=trace-head]"
    with look("--bundle", new, "--dataset", golden / "dataset") as address:
        picture(browser, "answer", f"{address}?{urlencode(user)}", (1_240, 840), unfolded=[".hit summary"])
        unfolded = [f"{trace} summary:has-text('{step}')" for step in ("excluded", "category")]
        picture(browser, "steps", f"{address}?{urlencode(steps)}", (1_240, 1_000), unfolded=unfolded, top=trace)
        picture(browser, "phone", f"{address}?{urlencode(user)}#answer", (360, 740))
    with look("--bundle", old, "--bundle", new, "--dataset", golden / "dataset") as address:
        picture(browser, "two", f"{address}?{urlencode(user | {'k': '3'})}", (1_240, 1_180))
    DIGEST.write_text(look_of_the_page(tmp_path) + "\n")


def picture(
    browser: Browser, name: str, address: str, size: tuple[int, int], unfolded: Sequence[str] = (), top: str = ""
) -> None:
    """A picture of a page with parts unfolded, from the element `top` on."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(address)
    for each in unfolded:
        page.locator(each).first.click()
    if top:
        page.locator(top).evaluate("each => each.scrollIntoView()")
    assert top or page.locator(".hit").first.is_visible()
    path = PLOTS / f"window-{name}.png"
    page.screenshot(path=path)
    page.close()
    # 256 colours look the same and take less than half of the bytes.
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def test_the_pictures_show_the_page_as_it_is(tmp_path: Path) -> None:
    assert look_of_the_page(tmp_path) == DIGEST.read_text().strip(), f"the page looks different now: {COMMAND}"


def test_the_docs_show_every_picture() -> None:
    shown = set(re.findall(r"plots/(window-\w+\.png)", DOCS.read_text(encoding="utf-8")))
    assert shown == {path.name for path in PLOTS.glob("window-*.png")}
