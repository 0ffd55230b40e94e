"""The page at /docs needs no other host: whatever it names comes from the service itself."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from serving.http.app import create_app
from serving.settings import Settings
from tests.support.worlds.serving import write_whole_world

BASE = "http://testserver/docs"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(bundle=write_whole_world(tmp_path_factory.mktemp("docs"))))) as client:
        yield client


class Links(HTMLParser):
    """Every `src` and `href` of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def links(html: str) -> list[str]:
    parser = Links()
    parser.feed(html)
    return parser.found


def test_the_page_names_no_other_host_and_all_that_it_names_is_there(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "//" not in re.sub(r"<!--.*?-->", "", page.text).replace("</", "")
    found = links(page.text)
    assert {Path(link).suffix for link in found} == {".js", ".css", ".png"}
    document = re.search(r"url: '([^']+)'", page.text)
    assert document is not None
    for link in [*found, document[1]]:
        answer = client.get(urljoin(BASE, link))
        assert answer.status_code == 200 and len(answer.content) > 1_000, link
    assert client.get(urljoin(BASE, document[1])).json()["paths"]["/recall"]


def test_the_files_are_answered_whole(client: TestClient) -> None:
    for link in links(client.get("/docs").text):
        whole = client.get(urljoin(BASE, link))
        for asked in ("bytes=abc", "bytes=99999999-", "bytes=0-9"):
            answer = client.get(urljoin(BASE, link), headers={"range": asked})
            assert (answer.status_code, answer.content) == (200, whole.content)


def test_the_files_are_what_the_page_takes_them_for(client: TestClient) -> None:
    types = {link: client.get(urljoin(BASE, link)).headers["content-type"] for link in links(client.get("/docs").text)}
    assert {Path(link).suffix: kind.partition(";")[0] for link, kind in types.items()} == {
        ".js": "text/javascript", ".css": "text/css", ".png": "image/png",
    }  # fmt: skip
    assert "SwaggerUIBundle" in client.get("/docs/swagger-ui-bundle.js").text


def test_a_browser_is_told_to_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert '"validatorUrl": null' in page.text
    policy = dict(part.split(maxsplit=1) for part in page.headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    for sources in policy.values():
        assert set(sources.split()) <= {"'self'", "'unsafe-inline'", "data:"}


def test_a_prefix_of_a_proxy_stays_before_every_link(client: TestClient) -> None:
    found = links(client.get("/docs").text)
    assert found
    for link in found:
        assert urljoin("https://shop/recall-service/docs", link).startswith("https://shop/recall-service/docs/")


@pytest.mark.parametrize("path", ["/redoc", "/docs/", "/docs/nothing.js", "/docs/..%2F__init__.py", "/docs/%2e%2e/x"])
def test_nothing_else_is_there(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404
