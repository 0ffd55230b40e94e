"""The page in a real browser: with and without JavaScript, by keyboard, on a phone, in the dark, for axe."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from serving.http.app import create_app
from serving.recall.loading import open_recaller
from serving.settings import Settings
from serving.window.page import Beside
from tests.serving.window.conftest import IMAGE, write_second
from tests.support.served import served

pytestmark = pytest.mark.slow
VIEWS = {
    "start": {},
    "answer": {"user": "u1", "item": "i3", "k": "5"},
    "steps": {"user": "u2", "column": "kind", "value": "war", "diversity": "year", "most": "1"},
    "found": {"find_user": "u", "find_item": "title 1"},
    "errors": {"user": "u1", "k": "many", "filter": "{", "feature.age": "old"},
    "similar": {"similar": "i2"},
}
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1_200, "height": 900}


@pytest.fixture(scope="module")
def address(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    second = open_recaller(write_second(bundle, tmp_path_factory.mktemp("second") / "renewed"))
    second.bundle.manifest.libraries["tensorflow-recommenders"] = "0.7.7"  # the longest name
    settings = Settings(bundle=bundle, window=True, index_sample_s=0)
    app = create_app(settings, beside=Beside(second, lambda user: ["i13", "i3"] if user == "u1" else []))
    with served(uvicorn.Config(app, port=0, log_config=None)) as url:
        yield url


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Any]:
    """Opens a view in a context of its own; fails if the browser complains of the page."""
    complaints: list[str] = []
    with ExitStack() as contexts:

        def opened(fields: dict[str, str], **options: Any) -> Page:
            context = browser.new_context(viewport=options.pop("viewport", DESK), **options)
            contexts.callback(context.close)
            page = context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            # The status 400 of a wrong request is a line there, too.
            page.on(
                "console", lambda said: said.type == "error" and "400" not in said.text and complaints.append(said.text)
            )
            page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
            page.goto(f"{address}/window?{urlencode(fields)}")
            return page

        yield opened
    assert complaints == []


@pytest.mark.parametrize(
    "view", ["answer", *(pytest.param(view, marks=pytest.mark.long) for view in VIEWS if view != "answer")]
)
def test_axe_finds_nothing_wrong_and_nothing_is_wider_than_a_phone(visit: Any, view: str) -> None:
    for scheme, viewport in (("light", DESK), ("dark", PHONE)):
        page = visit(VIEWS[view], color_scheme=scheme, viewport=viewport)
        for summary in page.locator("summary").all():  # Folded text is not looked at.
            if summary.is_visible() and summary.evaluate("each => !each.parentElement.open"):
                summary.click()
        found = Axe().run(page)
        assert found.violations_count == 0, (view, scheme, found.generate_report())
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_no_part_of_the_health_is_wider_than_a_phone(visit: Any) -> None:
    page = visit({}, viewport={"width": 320, "height": 640})
    for summary in page.locator("section[aria-labelledby=health-head] summary").all():
        summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_a_text_from_right_to_left_moves_nothing_beside_it(visit: Any) -> None:
    page = visit({"history": "\u05d0\u05d1 7\ni\u202e8"})
    for item in page.locator("section[aria-labelledby=history-head] li").all():
        left, right = "each => each.getBoundingClientRect().left", "each => each.getBoundingClientRect().right"
        assert item.locator("code").evaluate(right) <= item.locator(".soft").evaluate(left)
        letters = """each => [...each.firstChild.data].map((_, place) => {
            const range = document.createRange();
            range.setStart(each.firstChild, place);
            range.setEnd(each.firstChild, place + 1);
            return range.getBoundingClientRect().left;
        })"""
        places = item.locator(".soft").evaluate(letters)
        assert places == sorted(places)


def test_numbers_of_a_table_stay_whole_on_a_phone(visit: Any) -> None:
    page = visit({"user": "u1"}, viewport=PHONE)
    lines = "each => (range => (range.selectNodeContents(each), range.getClientRects().length))(document.createRange())"
    cells = page.locator("thead th, td").all()
    assert cells and [each.inner_text() for each in cells if each.evaluate(lines) != 1] == []


@pytest.mark.parametrize("javascript", [True, False])
def test_a_question_is_asked_changed_and_followed(visit: Any, javascript: bool) -> None:
    page = visit({}, java_script_enabled=javascript)
    page.get_by_label("User id").fill("u1")
    page.get_by_label("Items (1 to 100)").fill("4")
    page.get_by_role("button", name="Ask").first.click()
    answer = page.locator("section[aria-labelledby=answer-head] .columns > div").first.locator("ol > li")
    assert answer.count() == 4
    assert ("find_user" in page.url) == (not javascript)  # Empty fields are left out.
    page.get_by_role("button", name="Remove Title 5 from the history").click()
    assert page.get_by_label("History: item ids").input_value() == "i1"
    page.get_by_role("button", name="add to history: Title 17").first.click()
    assert page.get_by_label("History: item ids").input_value() == "i1\ni17"
    page.get_by_role("link", name="Items similar to Title 13").first.click()
    page.get_by_role("heading", name="Similar to Title 13").wait_for()
    page.go_back()
    assert page.get_by_label("User id").is_enabled()


@pytest.mark.parametrize("javascript", [True, False])
def test_the_only_item_of_a_history_is_removed(visit: Any, javascript: bool) -> None:
    page = visit({"user": "u1", "history": "i2"}, java_script_enabled=javascript)
    page.get_by_role("button", name="Remove Title 2 from the history").click()
    page.get_by_text("No history: asked without user u1").wait_for()
    page.get_by_role("button", name="Ask").first.click()
    page.wait_for_url("**stored=leave**")
    assert page.get_by_text("No history: asked without user u1").is_visible()
    if javascript:  # without it axe never ends
        assert Axe().run(page).violations_count == 0
    page.get_by_role("link", name="Ask with what user u1 took").click()
    page.get_by_role("heading", name="What user u1 took").wait_for()
    assert "stored" not in page.url


def test_a_page_whose_question_is_asked_in_another_tab_stays_as_it_was(visit: Any) -> None:
    page = visit({"user": "u1"})
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Ask").first.click(modifiers=["ControlOrMeta"])
    opened.value.get_by_label("User id").wait_for()
    assert page.get_by_label("History: item ids").is_enabled()
    assert page.locator("[aria-busy]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_refusal_has_the_style_of_the_page(browser: Browser, address: str, scheme: Any) -> None:
    page, said = browser.new_page(viewport=PHONE, color_scheme=scheme), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{address}/window/nothing")
    assert page.get_by_role("alert").inner_text() == "no such path"
    assert page.get_by_role("alert").evaluate("each => getComputedStyle(each).color") in (
        "rgb(163, 58, 0)",
        "rgb(255, 155, 102)",
    )
    assert page.get_by_role("link", name="Ask again").evaluate("each => each.href") == f"{address}/window/nothing"
    assert Axe().run(page).violations_count == 0
    # The browser's own line on the status, and nothing on the policy.
    assert [line for line in said if "404" not in line] == []
    page.close()


def test_hostile_titles_run_nothing(visit: Any) -> None:
    page = visit({"history": f"{IMAGE}\ni1", "find_item": "<script", "item": IMAGE})
    assert page.locator("img").count() == 0
    assert page.get_by_text(IMAGE, exact=False).first.is_visible()


def test_by_keyboard_alone(visit: Any) -> None:
    page = visit({})
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the answer")
    assert skip.evaluate("each => each === document.activeElement")
    assert skip.bounding_box()["x"] >= 0
    page.keyboard.press("/")
    page.keyboard.type("u1/")
    assert page.get_by_label("User id").input_value() == "u1/"
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.wait_for_url("**user=u1**")
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name, inside, ring = page.evaluate(
            "[document.activeElement.getAttribute('aria-label') || document.activeElement.innerText,"
            " !!document.activeElement.closest('main'), getComputedStyle(document.activeElement).outlineStyle]"
        )
        if not inside:
            break
        assert ring != "none", name
        seen.add(name)
    assert "Remove Title 5 from the history" in seen
    assert any(name.startswith("Items similar to") for name in seen)


def test_a_wrong_field_is_in_view_and_named_for_a_screen_reader(visit: Any) -> None:
    page = visit({"user": "u1", "feature.age": "old"})
    field = page.get_by_label("age (numeric)")
    assert field.is_visible() and field.evaluate("each => each === document.activeElement")
    described = field.get_attribute("aria-describedby")
    assert page.locator(f"#{described}").inner_text() == "must be a number, got 'old'"
    without = visit({"user": "u1", "feature.age": "old"}, java_script_enabled=False)
    assert without.get_by_label("age (numeric)").is_visible()


@pytest.mark.parametrize("javascript", [True, False])
def test_a_question_on_a_phone_ends_at_its_answer(visit: Any, javascript: bool) -> None:
    page = visit({}, viewport=PHONE, java_script_enabled=javascript)
    page.get_by_label("User id").fill("u1")
    page.get_by_role("button", name="Ask").first.click()
    page.wait_for_url("**user=u1**")
    heading = page.get_by_role("heading", name="What user u1 took")
    assert 0 <= heading.bounding_box()["y"] < 100
    page.get_by_role("link", name="Items similar to Title 13").first.click()
    page.get_by_role("heading", name="Similar to Title 13").wait_for()
    assert 0 <= page.get_by_role("heading", name="Similar to Title 13").bounding_box()["y"] < 100
    if javascript:
        page.get_by_label("Items (1 to 100)").fill("many")
        page.get_by_role("button", name="Ask").first.click()
        page.wait_for_url("**k=many**")
        field = page.get_by_label("Items (1 to 100)")
        page.locator("#k:focus").wait_for()
        assert 0 <= field.bounding_box()["y"] < PHONE["height"]


def test_the_form_stays_beside_a_long_answer(visit: Any) -> None:
    page = visit({"user": "u1", "column": "kind", "value": "war"})
    page.evaluate("scrollTo(0, 1_000)")
    assert page.evaluate("scrollY") == 1_000
    assert 0 <= page.get_by_label("User id").bounding_box()["y"] < DESK["height"]
    # The form is higher than the window, and all of it can be reached.
    end = page.get_by_role("link", name="Start again")
    assert end.bounding_box()["y"] > DESK["height"]
    end.hover()
    assert page.evaluate("scrollY") == 1_000 and end.bounding_box()["y"] < DESK["height"]


def test_paper_shows_the_answer_without_the_form(visit: Any) -> None:
    page = visit({"user": "u1"})
    page.emulate_media(media="print")
    assert not page.locator("form").is_visible() and not page.locator(".acts").first.is_visible()
    assert page.get_by_role("heading", name="Recalled").is_visible()
