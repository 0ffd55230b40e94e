"""A file of HTML in headless Chromium, which must ask for nothing else and say nothing on the console."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 360, "height": 740}
Pages = Callable[..., Any]


@contextmanager
def pages(file: Path) -> Iterator[Pages]:
    """Starts a browser; what is yielded opens the file, as a context of its own each time."""
    playwright = pytest.importorskip("playwright.sync_api")
    if (binary := shutil.which("chromium")) is None:
        reason = "chromium is not on PATH; Debian's package is called chromium"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=binary, args=["--no-sandbox", "--disable-gpu"])

        @contextmanager
        def opened(viewport: dict[str, int] = WIDE, scheme: str = "light") -> Iterator[Any]:
            context = browser.new_context(viewport=viewport, color_scheme=scheme)
            asked: list[str] = []
            context.on("request", lambda request: asked.append(request.url))
            context.route(lambda url: url != file.as_uri(), lambda route: route.abort())
            page, said = context.new_page(), []
            page.on("console", lambda message: said.append(message.text))
            page.goto(file.as_uri())
            yield page
            assert (asked, said) == ([file.as_uri()], [])
            context.close()

        yield opened
        browser.close()


def refuse_barriers(page: Any) -> None:
    """Unfolds all of the page and has axe look for what keeps readers out."""
    from axe_playwright_python.sync_playwright import Axe

    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
