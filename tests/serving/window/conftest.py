"""The world of the window's tests: titles, ids and values that a page must escape, a service that answers over HTTP."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.worlds.serving import ITEMS, copied_towers, item_vectors, save_towers, write_world

HOSTILE = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
HOSTILE_ROW, HOSTILE_ID = 9, f"i9{IMAGE}&"
CREATED_S = 1_645_253_504  # 2022-02-19T06:51:44Z, of row 0; a day later with each row
COUNTRIES = ["g2", "g0", HOSTILE, IMAGE, "g1", "g3"]


def attributes() -> pl.DataFrame:
    titles = [f"Title {row}" for row in range(ITEMS)]
    titles[1], titles[HOSTILE_ROW] = HOSTILE, IMAGE
    kinds = [("drama", "war", "comedy")[row % 3] for row in range(ITEMS)]
    kinds[5] = HOSTILE
    years = [None if row == 7 else 1990 + row for row in range(ITEMS)]
    tags = [["a", "b"] if row % 2 else ["b"] for row in range(ITEMS)]
    created = [None if row == 3 else CREATED_S + 86_400 * row for row in range(ITEMS)]
    return pl.DataFrame({"title": titles, "kind": kinds, "year": years, "tags": tags, "created": created})


def item_ids() -> list[str]:
    return [HOSTILE_ID if row == HOSTILE_ROW else f"i{row}" for row in range(ITEMS)]


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("window")
    save_towers(directory / "towers")
    # What `towers export` writes beside a tower for each feature with a vocabulary.
    (directory / "towers" / "query_tower" / "assets" / "query.country.txt").write_text("\n".join(COUNTRIES) + "\n")
    write_world(
        directory / "bundle",
        write_towers=copied_towers(directory / "towers"),
        item_attributes=attributes(),
        item_ids=item_ids(),
    )
    return directory / "bundle"


def write_second(bundle: Path, out: Path) -> Path:
    """A bundle of the same towers that prefers the last items of a group and lacks the very last one."""
    items = ITEMS - 1
    vectors = item_vectors(items)
    vectors[:, 7] = np.arange(items) / items
    write_world(
        out,
        items=items,
        write_towers=save_towers,
        model_version="world-2",
        item_vectors=vectors,
        item_attributes=attributes().head(items),
        item_ids=item_ids()[:items],
    )
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None and os.environ.get("CI") != "true":
        pytest.skip("no Chromium here")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
