"""The page over HTTP: off by default, private, escaped, the answers of `POST /recall`, errors beside their fields."""

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.bundle.manifest import FeatureSpec, PriorInfo
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.http.app import create_app
from serving.recall.query import RecallQuery
from serving.settings import Settings
from serving.window.environment import environment
from serving.window.form import Form
from serving.window.items import ShownItem, ShownValue
from serving.window.page import Beside, Page, distinct_names
from tests.serving.window.conftest import COUNTRIES, CREATED_S, HOSTILE, HOSTILE_ID, IMAGE, write_second
from tests.support.worlds.serving import FEATURES, ITEMS, copied_towers, query_vector, save_towers, write_world

# Elements without an end.
VOID = {"meta", "link", "input", "br", "img"}


@pytest.fixture(scope="module")
def client(bundle: Path) -> Iterator[TestClient]:
    held_out = {"u1": ["i13", "i59", "unknown"]}
    app = create_app(
        Settings(bundle=bundle, window=True, max_k=50, index_sample_s=0),
        beside=Beside(held_out=lambda user: held_out.get(user, [])),
    )
    with TestClient(app) as client:
        yield client


class Elements(HTMLParser):
    """The elements of a page, as (tag, attributes); fails if one is not closed in turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), (tag, attrs)
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(client: TestClient, status: int = 200, **fields: str) -> str:
    answer = client.get("/window", params=fields)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    Elements(answer.text)
    return answer.text


def recalled(html: str) -> list[str]:
    """The ids of the answer, in order."""
    section = re.search(r'<section aria-labelledby="answer-head">(.*?)</section>', html, re.DOTALL)
    assert section is not None
    entries = re.findall(
        r"<li[^>]*>(?:<bdi><strong>.*?</strong></bdi> )?<bdi><code>(.*?)</code>[^\n]*<span class=\"score\">", section[1]
    )
    return [unescape(each) for each in entries]


def ids(client: TestClient, path: str = "/recall", **body: Any) -> list[str]:
    return [item["id"] for item in client.post(path, json=body).json()["items"]]


@pytest.mark.parametrize("path", ["/window", "/window/window.css", "/window/window.js"])
def test_it_is_off_by_default(bundle: Path, path: str) -> None:
    assert TestClient(create_app(Settings(bundle=bundle))).get(path).status_code == 404


def test_a_browser_may_load_only_its_files_run_no_inline_script_and_keep_nothing(client: TestClient) -> None:
    for address in ("/window", "/window?user=u1", "/window?k=none", f"/window?{'x' * 20_000}"):
        headers = client.get(address).headers
        policy = dict(part.split(maxsplit=1) for part in headers["content-security-policy"].split("; "))
        assert policy.pop("default-src") == policy.pop("base-uri") == policy.pop("frame-ancestors") == "'none'"
        assert set(policy.values()) == {"'self'"}
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
    for name, kind in (("css", "text/css"), ("js", "text/javascript"), ("svg", "image/svg+xml")):
        file = client.get(f"/window/window.{name}")
        assert (file.status_code, file.headers["content-type"].partition(";")[0]) == (200, kind)
        assert file.headers["x-content-type-options"] == "nosniff"
    assert client.get("/window/page.py").status_code == client.get("/window/..%2Froutes.py").status_code == 404


def test_a_page_names_no_other_host_and_holds_nothing_inline(client: TestClient) -> None:
    html = page(client, user="u1", item="i3", find_item="title", column="kind", value="war")
    for tag, attributes in Elements(html).found:
        assert tag != "style" and "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src", "action"):
            link = attributes.get(name) or ""
            assert not re.match(r"\w+:|/", link), link
        if tag == "script":
            assert attributes["src"]


def test_it_is_in_no_openapi_document(client: TestClient) -> None:
    assert not [path for path in client.get("/openapi.json").json()["paths"] if "window" in path]


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"user": "u1"}, {"user_id": "u1"}),
        ({"user": "nobody"}, {"user_id": "nobody"}),
        ({"history": "i2\ni6", "k": "7"}, {"history": ["i2", "i6"], "k": 7}),
        ({"history": "i2\ni6", "seen": "keep"}, {"history": ["i2", "i6"], "exclude_seen": False}),
        ({"feature.country": "g3", "feature.tags": "x\ny"}, {"features": {"country": "g3", "tags": ["x", "y"]}}),
        ({"user": "u2", "exclude": "i10\ni14"}, {"user_id": "u2", "exclude": ["i10", "i14"]}),
        (
            {"user": "u2", "column": "year", "op": "gte", "value": "2010"},
            {"user_id": "u2", "filter": {"column": "year", "op": "gte", "value": 2010}},
        ),
        (
            {"user": "u2", "column": "tags", "op": "has", "value": "b",
             "filter": '{"column":"kind","op":"eq","value":"war"}'},
            {"user_id": "u2", "filter": {"and": [{"column": "tags", "op": "has", "value": "b"},
                                                 {"column": "kind", "op": "eq", "value": "war"}]}},
        ),
        (
            {"user": "u2", "diversity": "kind", "most": "2"},
            {"user_id": "u2", "diversity": {"column": "kind", "most": 2}},
        ),
    ],
)  # fmt: skip
def test_it_answers_as_recall_does(client: TestClient, fields: dict[str, str], body: dict[str, Any]) -> None:
    found = recalled(page(client, **fields))
    assert found and found == ids(client, **({"k": 20} | body))


def test_a_history_longer_than_the_tower_reads_is_said_to_be(client: TestClient) -> None:
    # The world's tower reads the newest 4.
    told = "The reasons name the newest 3 different items of the history."
    assert told in page(client, history="i2\ni6\ni10\ni14\ni3\ni14")
    assert "The reasons name" not in page(client, history="i2\ni6\ni10")


def test_similar_items_are_those_of_similar(client: TestClient) -> None:
    html = page(client, similar="i2", k="5")
    assert recalled(html) == ids(client, "/similar", items=["i2"], k=5)
    assert ">Similar to <bdi>Title 2</bdi></h2>" in html
    # No history is behind this answer.
    assert "the history:" not in html
    # Nothing may come back, and the item still has its title.
    assert ">Similar to <bdi>Title 2</bdi></h2>" in page(client, similar="i2", column="kind", value="none")


def test_the_prior_raises_or_lowers_a_score(bundle: Path, tmp_path: Path) -> None:
    shares = np.array([[2.0, 0.0], [-3.0, 0.0]] * (ITEMS // 2), np.float32)
    prior = PriorInfo(now=0.1, past=0.0, mean_count=1.0, new_item=(0.0, 0.0))
    write_world(tmp_path / "prior", write_towers=copied_towers(bundle), prior=prior, item_prior=shares)
    with TestClient(create_app(Settings(bundle=tmp_path / "prior", window=True, index_sample_s=0))) as client:
        html = page(client, user="u1", k="50")
        for row, told in ((2, "raises the score by 0.2."), (3, "lowers the score by 0.3.")):
            entry = html.split(f"<code>i{row}</code></bdi> <span", 1)[1].split("<li>", 1)[0]
            assert f"What is popular now {told}" in entry


def test_an_answer_of_popular_items_says_that_nothing_is_known(client: TestClient) -> None:
    assert "From the most popular items, because nothing is known about this query" in page(client, user="nobody")


def test_one_item_is_no_items(client: TestClient) -> None:
    assert "<summary>1 item, newest first" in page(client, history="i2")
    assert "<summary>2 items, newest first" in page(client, history="i2\ni3")


def test_links_and_buttons_lead_to_similar_items_and_other_histories(client: TestClient) -> None:
    html = page(client, history="i2\ni6", k="3")
    hrefs = [attributes["href"] or "" for tag, attributes in Elements(html).found if tag == "a"]
    (similar,) = {href for href in hrefs if href == f"window?{urlencode({'k': '3', 'similar': 'i10'})}#answer"}
    assert recalled(client.get(f"/{similar}").text) == ids(client, "/similar", items=["i10"], k=3)
    buttons = [attributes for tag, attributes in Elements(html).found if tag == "button" and attributes.get("name")]
    assert {each["form"] for each in buttons} == {"ask"}
    assert {each["value"] for each in buttons if each["name"] == "remove"} == {"i2", "i6"}
    assert {each["value"] for each in buttons if each["name"] == "add"} == set(recalled(html))
    assert recalled(page(client, history="i2\ni6", k="3", remove="i2")) == ids(client, history=["i6"], k=3)
    assert recalled(page(client, history="i2\ni6", k="3", add="i3")) == ids(client, history=["i2", "i6", "i3"], k=3)


def test_a_change_of_a_known_users_history_begins_with_what_they_took(client: TestClient) -> None:
    assert "What user <bdi>u1</bdi> took" in page(client, user="u1")  # i1, then i5
    changed = page(client, user="u1", remove="i5")
    assert re.search(r'<textarea id="history"[^>]*>\ni1</textarea>', changed)
    assert recalled(changed) == ids(client, user_id="u1", history=["i1"], k=20)


@pytest.mark.parametrize("fields", [{"user": "u1", "history": "i2"}, {"history": "i2"}])
def test_without_the_last_item_of_a_history_the_page_asks_without_one(
    client: TestClient, fields: dict[str, str]
) -> None:
    html = page(client, **fields, k="6", remove="i2")
    assert re.search(r'<textarea id="history"[^>]*>\n?</textarea>', html)
    assert recalled(html) == ids(client, k=6) != ids(client, user_id="u1", k=6)
    assert "What user <bdi>u1</bdi> took" not in html and "<p>No history" in html
    assert ("asked without user <bdi>u1</bdi>" in html) == ("user" in fields)
    # The form holds it: so does the next question, until an item is added or what the user took is asked for.
    assert '<option value="leave" selected>' in html
    asked = fields | {"history": "", "stored": "leave", "k": "6"}
    assert recalled(page(client, **asked)) == recalled(html)
    added = page(client, **asked, add="i3")
    assert recalled(added) == ids(client, history=["i3"], k=6, **({"user_id": "u1"} if "user" in fields else {}))
    assert 'name="stored"' not in added
    links = re.findall(r'<a href="([^"]*)">Ask with what user <bdi>u1</bdi> took</a>', html)
    assert len(links) == ("user" in fields)
    for link in links:
        assert recalled(client.get(f"/{unescape(link)}").text) == ids(client, user_id="u1", k=6)


def test_an_empty_field_of_a_history_is_what_the_user_took(client: TestClient) -> None:
    html = page(client, user="u1", history="", stored="")
    assert recalled(html) == ids(client, user_id="u1", k=20)
    assert "What user <bdi>u1</bdi> took" in html and 'name="stored"' not in html


def test_a_change_of_a_long_history_leaves_an_address_that_is_answered(client: TestClient) -> None:
    known = "\n".join(f"{'語' * 18}-{number}" for number in range(80))
    html = page(client, history=known, add="i3")
    (left,) = re.findall(r'<textarea id="history"[^>]*>\n(.*?)</textarea>', html, re.DOTALL)
    assert left.split("\n")[-2:] == [f"{'語' * 18}-79", "i3"] and len(left.split("\n")) < 80
    assert "i5" in page(client, history=left.replace("\n", "\r\n"), add="i5")
    # The longest id alone takes more than its share of the address.
    html = page(client, history="i2", add="語" * 1_000)
    assert re.findall(r'<textarea id="history"[^>]*>\n(.*?)</textarea>', html, re.DOTALL) == ["語" * 1_000]


def test_large_scores_are_whole_numbers() -> None:
    template = environment().from_string("{{ a | score }} {{ b | score }} {{ c | score }}")
    assert template.render(a=12_345.0, b=0.123456, c=-999.96) == "12,345 0.1235 -1,000"


def test_each_text_of_the_data_is_isolated() -> None:
    values = {"kind": ShownValue("\u05d0 (2)"), "made": ShownValue("2026", is_time=True)}
    item, parts = ShownItem("i\u202e7", "\u05d0 <1>", values), environment().get_template("parts.html.j2").module
    named = "<bdi><strong>\u05d0 &lt;1&gt;</strong></bdi> <bdi><code>i\u202e7</code></bdi>"
    assert parts.name(item) == named  # type: ignore[attr-defined]
    assert parts.label(item) == "<bdi>\u05d0 &lt;1&gt;</bdi>"  # type: ignore[attr-defined]
    assert parts.attributes(item) == (  # type: ignore[attr-defined]
        '<p class="soft"><bdi>kind</bdi>: <bdi>\u05d0 (2)</bdi> · '
        '<bdi>made</bdi>: <time datetime="2026">2026</time></p>'
    )


def test_what_a_user_took_in_the_test_is_marked(client: TestClient) -> None:
    html = page(client, user="u1", k="5")  # of group 1: i9, i13, …
    assert "1 of the 3 items that this user took in the test" in html
    hits = re.findall(r'<li class="hit">.*?<code>(.*?)</code>', html)
    assert hits == ["i13"]
    assert "took in the test" not in page(client, user="u2")


def test_users_are_found_by_the_beginning_of_their_id_and_items_by_their_title(client: TestClient) -> None:
    users = page(client, find_user="u1")
    for user, there in (("u1", True), ("u10", True), ("u11", True), ("u2", False)):
        assert (f">{user}</a>" in users) == there
    assert "No user of this bundle" in page(client, find_user="x")
    items = page(client, find_item="TITLE 4")
    found = re.findall(r"<li><bdi><strong>(.*?)</strong></bdi> <bdi><code>(.*?)</code>", items)
    assert found == [(f"Title {row}", f"i{row}") for row in (4, *range(40, 50))]
    assert re.findall(r"</strong></bdi> <bdi><code>(.*?)</code>", page(client, find_item="i59")) == ["i59"]


def test_the_values_that_the_tower_learnt_are_offered(client: TestClient) -> None:
    html = page(client)
    ((name, options),) = re.findall(r'<datalist id="(.*?)">(.*?)</datalist>', html)
    assert [unescape(each) for each in re.findall(r'value="(.*?)"', options)] == COUNTRIES
    (field,) = [each for tag, each in Elements(html).found if tag == "input" and each.get("name") == "feature.country"]
    assert field["list"] == name
    # Firefox shows no list then.
    assert "autocomplete" not in field


def test_no_more_than_a_hundred_values_are_offered_and_no_long_one(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle / "query_tower", tmp_path / "towers" / "query_tower")
    shutil.copytree(bundle / "candidate_tower", tmp_path / "towers" / "candidate_tower")
    values = ["x" * 1_000, *(f"c{number}" for number in range(200))]
    (tmp_path / "towers" / "query_tower" / "assets" / "query.country.txt").write_text("\n".join(values))
    (tmp_path / "towers" / "query_tower" / "assets" / "query.tags.txt").write_text("\n".join("abcdefg"))
    write_world(tmp_path / "bundle", write_towers=copied_towers(tmp_path / "towers"))
    with TestClient(create_app(Settings(bundle=tmp_path / "bundle", window=True, index_sample_s=0))) as client:
        html = page(client)
    offered = re.findall(r'<option value="([^"]*)"></option>', html)
    assert offered == [f"c{number}" for number in range(99)]
    # A field of several lines has no such list.
    values = ", ".join(f"<bdi>{each}</bdi>" for each in "abcde")
    assert f'<p class="soft" id="feature-4-hint">such as {values}</p>' in html


def test_times_are_shown_and_asked_for_in_iso_8601(client: TestClient) -> None:
    def shown(row: int) -> str:
        return (datetime.fromtimestamp(CREATED_S, UTC) + timedelta(days=row)).strftime("%Y-%m-%dT%H:%M:%SZ")

    html = page(client, user="u2", k="50")
    assert f'<bdi>created</bdi>: <time datetime="{shown(10)}">{shown(10)}</time>' in html
    assert str(CREATED_S + 10 * 86_400) not in html
    fields = {"user": "u2", "column": "created", "op": "gte", "k": "50"}
    html = page(client, **fields, value=shown(30))
    assert {*recalled(html)} == {f"i{row}" for row in range(30, ITEMS)}
    assert f"filter: created ≥ {shown(30)}" in html
    assert "filter: created ≥ 2022-03-21<" in page(client, **fields, value="2022-03-21")
    assert recalled(page(client, **fields, value=str(CREATED_S + 30 * 86_400))) == recalled(html)
    # Without a zone in UTC, as all times of the page.
    assert recalled(page(client, **fields, value=shown(30).removesuffix("Z"))) == recalled(html)
    made = re.search(r'<dt>made</dt><dd><time datetime="(.*?)">(.*?)</time>', html)
    assert made is not None and made[1] == made[2]
    assert abs(datetime.fromisoformat(made[1]) - datetime.now(UTC)) < timedelta(hours=1)


def test_a_model_that_reads_times_says_that_it_is_asked_without(bundle: Path, tmp_path: Path) -> None:
    told = "The model also reads the times of a history; here it is asked without them."
    times = FeatureSpec(name="history_times", kind="history_times", dtype="int64", length=4)
    save_towers(tmp_path / "towers", (*FEATURES, times))
    write_world(tmp_path / "bundle", features=(*FEATURES, times), write_towers=copied_towers(tmp_path / "towers"))
    with TestClient(create_app(Settings(bundle=tmp_path / "bundle", window=True, index_sample_s=0))) as client:
        assert told in page(client)
    with TestClient(create_app(Settings(bundle=bundle, window=True, index_sample_s=0))) as client:
        assert told not in page(client)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/m/old"], ["old"]),
        (["/m/old", "/m/new"], ["old", "new"]),
        (["/m/a/bundle", "/m/b/bundle"], ["a/bundle", "b/bundle"]),
        (["/m/a/x/bundle", "/m/b/x/bundle"], ["a/x/bundle", "b/x/bundle"]),
        (["/bundle", "/m/bundle"], ["/bundle", "m/bundle"]),
        (["/m/bundle", "/m/bundle"], ["bundle", "bundle"]),
    ],
)
def test_bundles_of_one_name_are_told_apart_by_their_folders(paths: list[str], names: list[str]) -> None:
    assert distinct_names([Path(path) for path in paths]) == names


def test_a_live_item_is_found_and_a_deleted_one_is_not(bundle: Path, tmp_path: Path) -> None:
    settings = Settings(bundle=bundle, window=True, state=tmp_path / "state", index_sample_s=0)
    with TestClient(create_app(settings)) as client:
        item = {"features": {"group": "g1", "place": 2.0}, "attributes": {"title": "Title 400", "kind": "war"}}
        assert client.put("/items/new", json=item).status_code == 200
        assert client.delete("/items/i41").status_code == 200
        assert client.put("/items/i42", json=item | {"attributes": {"title": "Other"}}).status_code == 200
        event = {"id": "e1", "user_id": "u1", "item_id": "i13", "time": 1}
        assert client.post("/events", json={"events": [event]}).status_code == 200
        html = page(client, find_item="title 4", user="u1", item="i41")
        took = re.search(r'<section aria-labelledby="history-head">(.*?)</section>', html, re.DOTALL)
        assert took is not None
        assert re.findall(r"<code>(.*?)</code>", took[1]) == ["i13", "i5", "i1"]
        found = re.search(r'<section aria-labelledby="found-items">(.*?)</section>', html, re.DOTALL)
        assert found is not None
        rows = [4, 40, *range(43, 50)]
        assert re.findall(r"<code>(.*?)</code>", found[1]) == [*(f"i{row}" for row in rows), "new"]
        assert recalled(html)[0] == "new"
        assert "it was deleted since the bundle was made" in html
        assert "2 items added or changed, 2 of the bundle replaced or deleted" in html


def test_the_canary_answers_beside_the_active_bundle(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "old")
    write_second(bundle, tmp_path / "renewed")
    root = Versions(tmp_path)
    root.activate("old")
    root.set_canary("renewed", 0.5)
    with TestClient(create_app(Settings(bundle=tmp_path, window=True, index_sample_s=0))) as client:
        html = page(client, user="u1", k="5", bundle="active")
        assert "active: old" in html and "canary: renewed" in html
        # The last items of group 1, as `write_second` says, and the first: none is in both lists.
        assert "0 % of the items are in both lists" in html
        nothing = page(client, user="u1", column="kind", value="none", bundle="active")
        told = nothing.partition('<h2 id="differences-head">What differs</h2>')[2].partition("</section>")[0]
        assert told.strip() == "<p>Both lists are empty.</p>"
        canary = page(client, user="u1", k="5", bundle="canary", alone="yes")
        assert recalled(canary) == ["i57", "i53", "i49", "i45", "i41"]
        assert "What differs" not in canary
        assert ">as the service picks</option>" in html
        picked = page(client, user="u1", k="5", alone="yes")
        assert recalled(picked) == ids(client, user_id="u1", k=5)
        # A change of the history asks for the user again, so for the bundle of this one.
        service = client.app.state.service  # type: ignore[attr-defined]
        inside = next(user for user in map("u{}".format, range(20)) if service.pick(user) is not service.pick(None))
        assert "<h3>canary: renewed</h3>" in page(client, user=inside, similar="i3", add="i7", alone="yes")
        # Without a history it asks without the user, as `POST /recall` without one: the active bundle answers.
        for change in ({"stored": "leave"}, {"history": "i5", "remove": "i5"}):
            html = page(client, user=inside, k="5", alone="yes", **change)
            assert "<h3>active: old</h3>" in html and recalled(html) == ids(client, k=5)
        lacking = page(client, user="u3", k="5", item="i59", bundle="canary", alone="yes")
        assert "the catalogue has no such item" in lacking
        # Beside one another without a service that picks: the first is the default.
        answering = client.app.state.service.active_bundles.answering  # type: ignore[attr-defined]
        shown = Page(client.app.state.service, _asks_nothing, Beside(answering["canary"].opened))  # type: ignore[attr-defined]
        (choice,) = re.findall(r'<select id="bundle" .*?</select>', shown.render(Form({}), ""), re.DOTALL)
        assert re.findall(r'value="(.*?)".*?>(.*?)<', choice) == [("", "A: old"), ("B", "B: renewed")]


def test_a_refused_bundle_is_told_of_as_by_the_reload(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "good")
    Versions(tmp_path).activate("good")
    with TestClient(create_app(Settings(bundle=tmp_path, window=True, index_sample_s=0))) as client:
        shutil.copytree(bundle, tmp_path / "altered")
        vectors = np.load(tmp_path / "altered" / "item_vectors.npy")
        np.save(tmp_path / "altered" / "item_vectors.npy", vectors + 1)
        active = json.loads((tmp_path / "active.json").read_text(encoding="utf-8"))
        (tmp_path / "active.json").write_text(json.dumps(active | {"active": "altered"}), encoding="utf-8")
        told = client.post("/admin/reload").json()["refused"]
        assert list(told) == ["altered"]
        html = page(client)
        assert f"Refused: altered: {told['altered']}<" in unescape(html)
        assert str(tmp_path) not in html


def _asks_nothing(content: Mapping[str, Any]) -> RecallQuery:
    raise AssertionError(content)


def test_both_bundles_say_why(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "old")
    write_second(bundle, tmp_path / "renewed")
    Versions(tmp_path).activate("old")
    Versions(tmp_path).set_canary("renewed", 0.5)
    history = ["i2", "i6"]
    with TestClient(create_app(Settings(bundle=tmp_path, window=True, index_sample_s=0))) as client:
        html = page(client, history="\n".join(history), k="5", bundle="active")
    section = re.search(r'<section aria-labelledby="answer-head">(.*?)</section>', html, re.DOTALL)
    assert section is not None
    columns = section[1].split("<h3>")[1:]
    for column, name in zip(columns, ("old", "renewed"), strict=True):
        vectors = Bundle.open(tmp_path / name, verify=False).item_vectors
        items = re.findall(
            r'<li><bdi><strong>[^\n]*<code>(i\d+)</code></bdi> <span class="score">.*?(<details>.*?</details>)',
            column,
            re.DOTALL,
        )
        assert len(items) == 5
        for item_id, why in items:
            vector = vectors[int(item_id[1:])]
            told = re.findall(r"<code>(i\d+)</code></bdi>: similarity (\S+); without it the score is ([-\d.e]+)", why)
            assert {near for near, *_ in told} == {*history} and "Nearest in the history, by dot product:" in why
            for near, similarity, without in told:
                assert similarity == f"{vector @ vectors[int(near[1:])]:.3f}"
                rest = query_vector({"history": [each for each in history if each != near]})
                assert float(without) == pytest.approx(float(vector @ rest), rel=1e-3)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": HOSTILE}, {"user": IMAGE}, {"history": f"{HOSTILE}\n{HOSTILE_ID}\ni1"}, {"exclude": IMAGE},
        {"similar": HOSTILE_ID}, {"similar": HOSTILE}, {"item": HOSTILE_ID}, {"item": IMAGE, "user": "u1"},
        {"find_user": HOSTILE}, {"find_item": HOSTILE}, {"find_item": IMAGE}, {"feature.country": IMAGE},
        {"user": "u1", "column": "kind", "value": HOSTILE}, {"user": "u1", "k": "60"},
        {"user": "u1", "diversity": "kind", "most": "1", "item": HOSTILE_ID},
        {"history": "i1", "add": IMAGE}, {"history": "i1", "remove": IMAGE},
    ],
)  # fmt: skip
def test_hostile_titles_ids_and_values_stay_text(client: TestClient, fields: dict[str, str]) -> None:
    html = client.get("/window", params=fields).text
    tags = [(tag, attributes) for tag, attributes in Elements(html).found]
    assert [attributes.get("src") for tag, attributes in tags if tag == "script"] == ["window/window.js"]
    assert not [tag for tag, _ in tags if tag == "img"]
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    if fields.get("find_item") or fields.get("history", "").startswith(HOSTILE):
        assert escape(HOSTILE) in html.replace("&#34;", "&quot;") or escape(IMAGE) in html.replace("&#34;", "&quot;")


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"k": IMAGE}, "k", "must be a whole number from 1 to 50"),
        ({"user": "u1", "k": "51"}, "k", "must be a whole number from 1 to 50"),
        ({"user": "u1", "column": "colour", "value": "red"}, "column", "filter.column: no such column"),
        ({"user": "u1", "column": "kind", "op": "has", "value": "red"}, "op", "column &#39;kind&#39; is a string"),
        ({"user": "u1", "column": "year", "value": HOSTILE}, "value", "must be a number"),
        (
            {"column": "kind", "op": "has", "value": "b", "filter": '{"column":"year","op":"eq","value":1}'},
            "op",
            "filter.and.0.op: column &#39;kind&#39; is a string",
        ),
        ({"user": "u1", "filter": '{"column": "<b>"}'}, "filter", "must be {&#34;column&#34;"),
        ({"user": "u1", "filter": "{<script>"}, "filter", "not valid JSON"),
        ({"user": "u1", "diversity": "<b>"}, "diversity", "no such column"),
        ({"feature.age": "1e99"}, "feature-2", "must be a finite number that float32 can hold"),
        ({"feature.tags": "a\nb\nc\nd"}, "feature-4", "at most 3 values, got 4"),
        ({"user": "u1", "bundle": "<b>"}, "", "bundle: no such bundle; there are active"),
    ],
)
def test_what_is_wrong_stands_beside_its_field(
    client: TestClient, fields: dict[str, str], field: str, message: str
) -> None:
    html = page(client, 400, **fields)
    assert 'role="alert"' in html
    if field == "":
        assert message in html
        return
    told = re.search(rf'<p class="error" id="{field}-error">(.*?)</p>', html)
    assert told is not None and message in told[1]
    (marked,) = [each for _, each in Elements(html).found if each.get("aria-invalid")]
    assert (marked["id"], marked["aria-describedby"]) == (field, f"{field}-error")
    assert 'id="answer-head"' not in html


def test_a_long_address_and_a_long_list_are_refused_on_a_page(client: TestClient, bundle: Path) -> None:
    html = page(client, 413, history="\n".join(f"item-{number}" for number in range(3_000)))
    assert "the address has" in html and "at most 16,384 are allowed" in html
    with TestClient(create_app(Settings(bundle=bundle, window=True, max_list=2))) as small:
        assert "history: must hold at most 2, got 3" in page(small, 400, history="i1\ni2\ni3")


def test_the_heavy_limit_holds(bundle: Path) -> None:
    app = create_app(Settings(bundle=bundle, window=True, max_heavy=1))
    client = TestClient(app)
    assert client.get("/window").status_code == 503  # no bundle before the start
    with client:
        limits = app.middleware_stack.app  # type: ignore[union-attr]
        while not hasattr(limits, "heavy"):
            limits = limits.app
        limits.heavy = 1
        refused(client.get("/window?user=u1"), 429, "too many batches, embeddings and changes")
        assert client.get("/window").headers["retry-after"] == "1"
        assert client.post("/similar", json={"items": ["i1"]}).json()["error"]["code"] == "too_many_requests"


def refused(answer: httpx.Response, status: int, message: str) -> None:
    """Holds that an answer is the page of a refusal, which may use its own style and nothing else."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert len(answer.headers.get_list("content-length")) == 1 and answer.headers["x-request-id"]
    tags = Elements(answer.text).found
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "form"}
    assert f"<h2>{status} " in answer.text and message in answer.text
    after = answer.headers.get("retry-after")
    assert (f"after {after} s" in answer.text) == (after is not None)
    policy = dict(part.split(maxsplit=1) for part in answer.headers["content-security-policy"].split("; "))
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.pop("style-src") == f"'sha256-{digest}'" and set(policy.values()) == {"'none'"}
    assert {"default-src", "form-action", "base-uri", "frame-ancestors"} == {*policy}
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_refusal_under_window_is_a_page_and_elsewhere_json(client: TestClient, bundle: Path) -> None:
    refused(client.get("/window/page.py"), 404, "no such path")
    refused(client.post("/window"), 405, "POST is not allowed here")
    assert client.post("/window").headers["allow"] == "GET, HEAD"
    refused(client.get("/window", headers={"upgrade": "x"}), 400, "send HTTP/1.1 without Upgrade")
    small = TestClient(create_app(Settings(bundle=bundle, window=True, max_body_bytes=1_000)))
    refused(small.request("GET", "/window", content=b"x" * 2_000), 413, "the body is larger than 1000 bytes, got 2000")
    refused(small.get("/window"), 503, "no bundle is loaded yet")
    for path in ("/windows", "/recall"):
        assert client.get(path).json()["error"]["message"]
    assert client.get("/readyz/").headers["content-type"] == "application/json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Page, "render", lambda *_: 1 / 0)
        refused(client.get("/window?user=u1"), 500, "internal error; see the log")


def entry(name: str, role: str, key: str) -> str:
    return f'[[key]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'


def with_keys(bundle: Path, folder: Path) -> TestClient:
    keys = folder / "keys.toml"
    keys.write_text(entry("shop", "read", "read-key") + entry("loader", "admin", "admin-key"))
    keys.chmod(0o600)
    return TestClient(create_app(Settings(bundle=bundle, window=True, keys=keys, index_sample_s=0)))


@pytest.fixture(scope="module")
def locked(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return with_keys(bundle, tmp_path_factory.mktemp("keys"))


# Why a key does not open the page.
PASSWORD, UNKNOWN, READ_ONLY = "give an admin key as the password", "this key is not known", "this key may read"


def basic(user: str, key: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{key}'.encode()).decode()}"


@pytest.mark.parametrize("path", ["/window", "/window/window.js", "/window?user=u1"])
@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (None, 401, PASSWORD), ("Bearer admin-key", 503, ""), ("bearer admin-key", 503, ""),
        ("Bearer read-key", 403, READ_ONLY), ("Bearer wrong", 401, UNKNOWN), (basic("", "admin-key"), 503, ""),
        (basic("me", "admin-key"), 503, ""), ("basic " + basic("me", "admin-key")[6:], 503, ""),
        (basic("me", "read-key"), 401, READ_ONLY), (basic("me", "wrong"), 401, UNKNOWN),
        (basic("admin-key", ""), 401, UNKNOWN), ("Basic !!!", 401, PASSWORD), ("Basic", 401, PASSWORD),
        ("Basic ", 401, UNKNOWN), ("Digest x", 401, PASSWORD),
        # Base64 has no hyphen; these four letters are some bytes without a colon.
        ("Basic admin-key", 401, PASSWORD), ("Basic user", 401, UNKNOWN),
    ],
)  # fmt: skip
def test_an_admin_key_opens_it_as_a_password_too(
    locked: TestClient, path: str, sent: str | None, status: int, message: str
) -> None:
    answer = locked.get(path, headers={} if sent is None else {"authorization": sent})
    # Without a start there is no bundle: 503 is the page's own answer; its files are there.
    assert answer.status_code == (200 if status == 503 and path.endswith(".js") else status)
    if status == 401:
        bearer = sent is not None and sent.lower().startswith("bearer")
        scheme = 'Bearer realm="towers"' if bearer else 'Basic realm="towers", charset="UTF-8"'
        assert answer.headers["www-authenticate"].startswith(scheme)
    if status in (401, 403):
        refused(answer, status, message)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/recall"), ("GET", "/metrics"), ("DELETE", "/items/i1"), ("GET", "/windows")]
)
def test_a_password_opens_nothing_else(locked: TestClient, method: str, path: str) -> None:
    answer = locked.request(method, path, headers={"authorization": basic("me", "admin-key")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_it_links_only_where_its_password_opens(bundle: Path, tmp_path: Path, client: TestClient) -> None:
    with with_keys(bundle, tmp_path) as opened:
        html = opened.get("/window", headers={"authorization": basic("me", "admin-key")}).text
    assert 'href="readyz"' in html and 'href="metrics"' not in html and 'href="docs"' not in html
    assert 'href="metrics"' in page(client) and 'href="docs"' in page(client)


def test_the_start_page_has_no_way_back_to_itself(client: TestClient) -> None:
    assert "Start again" not in page(client)
    assert "Start again" in page(client, user="u1")
    assert "Start again" in page(client, find_user="u")


def test_health_is_that_of_readyz_beside_the_versions_that_run(client: TestClient) -> None:
    html = page(client)
    assert "The service is ready." in html
    assert all(f"{name} {version(name)}" in html for name in ("towers-recall", "tensorflow", "numpy"))
    drain = client.app.state.drain  # type: ignore[attr-defined]
    drain.begun = True
    try:
        assert client.get("/readyz").status_code == 503
        assert "The service is not ready: the service is stopping." in page(client)
    finally:
        drain.begun = False
