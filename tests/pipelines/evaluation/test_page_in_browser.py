"""`report.html` in a real browser: light, dark, narrow, printed, by keyboard, for axe, and without any other file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipelines.bundles import build_index
from pipelines.evaluation import report
from tests.support import browser
from tests.support.browser import NARROW, Pages
from tests.support.worlds import columns

pytestmark = pytest.mark.slow

FOCUSABLE = "a[href], summary, [tabindex='0']"
STAGES = [
    {
        "stage": "train",
        "best_epoch": 2,
        "metric": "recall@20",
        "history": [
            {
                "epoch": n,
                "loss": 5.0 / n,
                "recall@20": 0.1 + n % 2 / 50,
                "train_seconds": 70.0,
                "validation_seconds": 20.0,
            }
            for n in (1, 2, 3)
        ],
    },
    {"stage": "refit", "best_epoch": 2, "metric": "", "history": [{"epoch": n, "loss": 4.0 / n} for n in (1, 2)]},
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every kind of plot."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "ITEMS", 400)
        patch.setattr(columns, "genres", lambda item: [f"a genre of a long name: {item % 4}" + "x" * (item % 2 * 500)])
        dataset = columns.write_dataset(columns.make_events(), tmp_path_factory.mktemp("browser"))
        bundle = columns.write_bundle_of(dataset, 8, training={"stages": STAGES})
    build_index.run(bundle, kind="scann", target_recall=0.8, target_k=10)
    content = report.run(bundle, dataset, dataset.parent / "report", slices=["country", "genres"], maps=["genres"])
    assert "left_out" not in {**content["index_curve"], **content["map"]}
    return dataset.parent / "report" / "report.html"


@pytest.fixture(scope="module")
def pages(file: Path) -> Iterator[Pages]:
    """Opens the report; at the end it must have asked for nothing else and said nothing on the console."""
    with browser.pages(file) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_axe_finds_nothing_and_plots_have_the_inks_of_the_page(pages: Pages, scheme: str) -> None:
    with pages(scheme=scheme) as page:
        browser.refuse_barriers(page)
        inks = page.evaluate(
            "[...new Set([...document.querySelectorAll('svg text')].map(t => getComputedStyle(t).fill))]"
        )
        assert inks == [page.evaluate("getComputedStyle(document.body).color")]
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 26)"}[scheme]


def test_every_plot_has_a_title_and_a_description(pages: Pages) -> None:
    with pages() as page:
        images = page.get_by_role("img")
        names = [images.nth(place).locator("title").first.text_content() for place in range(images.count())]
        assert names == [
            "Recall by length of the list",
            "recall@20 by slice",
            "Popularity of what is recommended",
            "Recall of the index and time of a query",
            "Item vectors by genres",
            "Training: train",
            "Training: refit",
        ]
        for name in names:
            shown = page.get_by_role("img", name=name)
            assert shown.count() == 1 and len(shown.locator("desc").text_content()) > 20
        assert images.count() == page.locator("svg").count()
        assert page.evaluate("new Set([...document.querySelectorAll('svg [id]')].map(each => each.id)).size") > 0


def test_a_phone_scrolls_down_only(pages: Pages) -> None:
    with pages(NARROW) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
        # The tables and plots are wider, and scroll within themselves.
        assert page.evaluate(
            "[...document.querySelectorAll('.wide')].some(each => each.scrollWidth > each.clientWidth)"
        )


def test_a_word_of_500_letters_widens_no_table_of_slices(pages: Pages) -> None:
    with pages() as page:
        slices = page.locator("[aria-label=slices]")
        assert slices.locator("th[scope=row]", has_text="x" * 500).count() == 2
        assert slices.evaluate("each => each.scrollWidth - each.clientWidth") == 0


def test_a_phone_shows_plots_in_letters_that_can_be_read(pages: Pages) -> None:
    with pages(NARROW) as page:
        heights = "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height)"
        assert min(page.evaluate(heights)) > 9


def test_paper_shows_what_is_folded_on_the_screen(pages: Pages) -> None:
    hidden = """
        [...document.querySelectorAll('details li')].filter(each => !each.checkVisibility({contentVisibilityAuto: true})
            || each.getBoundingClientRect().height === 0).length
    """
    with pages() as page:
        assert page.evaluate(hidden) > 0
        page.emulate_media(media="print")
        assert page.evaluate(hidden) == 0
        assert page.pdf().startswith(b"%PDF-")


def test_no_plot_cuts_a_text(pages: Pages) -> None:
    with pages() as page:
        assert page.evaluate("document.querySelectorAll('svg text').length") > 50
        cut = page.evaluate(
            """[...document.querySelectorAll('svg text')].filter(text => {
                const [own, all] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
                return own.left < all.left - 1 || own.right > all.right + 1;
            }).map(text => text.textContent)"""
        )
        assert cut == []


def test_paper_cuts_no_table(pages: Pages) -> None:
    with pages({"width": 718, "height": 1000}) as page:  # A4 without Chromium's margins
        page.emulate_media(media="print")
        tables = page.locator("table")
        assert tables.count() > 3
        assert [each for each in tables.all() if each.bounding_box()["x"] + each.bounding_box()["width"] > 718] == []
        assert page.evaluate("document.documentElement.scrollWidth") == 718


def test_the_keyboard_reaches_all_in_the_order_of_the_page(pages: Pages) -> None:
    with pages() as page:
        # A folded table is reached once it is unfolded.
        shown = f"[...document.querySelectorAll(`{FOCUSABLE}`)].filter(each => each.checkVisibility())"
        order = page.evaluate(f"{shown}.length")
        page.evaluate(f"{shown}.forEach((each, place) => each.dataset.place = place)")
        reached = []
        for _ in range(order):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("Number(document.activeElement.dataset.place)"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert order > 5 and reached == list(range(order))
        folded = page.locator("details:not([open])").first
        folded.locator("summary").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.parentElement.open")


@pytest.mark.long
def test_the_page_of_thirty_thousand_users_is_small(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "ITEMS", 3_000)
        patch.setattr(columns, "USERS", 30_000)
        dataset = columns.write_dataset(columns.make_events(), tmp_path)
        bundle = columns.write_bundle_of(dataset, 8, training={"stages": STAGES * 3})
    slices = ["country", "users.age", "genres", "items.age", "device"]
    content = report.run(bundle, dataset, tmp_path / "report", slices=slices, maps=["genres", "age", "popularity"])
    assert content["counts"]["users"] > 29_000 and content["map"]["items"] == 1_000
    assert (tmp_path / "report" / "report.html").stat().st_size < 3_000_000
    assert np.load(bundle / "item_vectors.npy").shape == (3_000, 8)
