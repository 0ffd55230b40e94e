"""docs/model/public.md: its commands, on small files in the forms in which the data sets are published."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipelines.dataset.dataset import Dataset
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "model" / "public.md").read_text(encoding="utf-8")
TABLE, *SECTIONS = PAGE.split("\n## ")
BLOCKS = {part.split("\n")[0]: re.findall(r"```sh\n(.*?)```", part, re.DOTALL) for part in SECTIONS}
USERS, ITEMS = 36, 30
TAKEN = [
    (user, (user * 5 + place) % ITEMS, 1_200_000_000 + 86_400 * (7 * user + place))
    for user in range(USERS)
    for place in range(5)
]
DETAILS = {"Weight": "3 ounces"}
GONE = [*TAKEN, (1, 900, TAKEN[0][2])]  # with an item that Amazon's items lack


def moment(time: int, form: str) -> str:
    return datetime.fromtimestamp(time, UTC).strftime(form)


def lines(*rows: object) -> bytes:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()


def amazon() -> dict[str, bytes]:
    reviews = [
        {
            "reviewerID": f"A{user}",
            "asin": f"B{item}",
            "reviewerName": f"n{user}",
            "helpful": [0, 1],
            "reviewText": f"text {time}",
            "overall": 4.0,
            "summary": "five",
            "unixReviewTime": time,
            "reviewTime": moment(time, "%m %d, %Y"),
        }
        for user, item, time in GONE
    ]
    items = [
        {"asin": f"B{item}", "title": f"Soap {item}", "related": DETAILS, "categories": [["Beauty"]]}
        for item in range(ITEMS)
    ]
    return {
        "reviews_Beauty_5.json.gz": gzip.compress(lines(*reviews)),
        "meta_Beauty.json.gz": gzip.compress(lines(*map(repr, [*items, items[0]]))),
        "ratings_Beauty.csv": lines(*(f"A{user},B{item},4.0,{time}" for user, item, time in TAKEN)),
    }


def amazon_2018() -> dict[str, bytes]:
    items = [{"asin": f"B{item}", "title": f"Soap {item}", "details": DETAILS} for item in range(ITEMS)]
    return amazon() | {"meta_Beauty.json.gz": gzip.compress(lines(*items, items[0]))}


def amazon_2023() -> dict[str, bytes]:
    reviews = [
        {
            "rating": 4.0,
            "title": "five",
            "text": f"text {time}",
            "images": [{"small_image_url": f"https://{time}"}] if user % 2 else [],
            "asin": f"V{item}-{user // 18}",
            "parent_asin": f"B{item}",
            "user_id": f"A{user}",
            "timestamp": time * 1_000,
            "helpful_vote": 0,
            "verified_purchase": True,
        }
        for user, item, time in GONE
    ]
    items = [
        {
            "title": f"Soap {item}",
            "features": ["soft"],
            "price": price,
            "images": [{"variant": "MAIN"}],
            "videos": [],
            "store": "S",
            "details": DETAILS,
            "parent_asin": f"B{item}",
        }
        for item, price in [
            *((item, 12.99 if item % 3 else None) for item in range(ITEMS)),
            (901, "from 3.99"),
            (0, 1.5),
        ]
    ]
    return {
        "All_Beauty.jsonl.gz": gzip.compress(lines(*reviews)),
        "meta_All_Beauty.jsonl.gz": gzip.compress(lines(*items)),
    }


def yelp() -> dict[str, bytes]:
    reviews = [
        {
            "review_id": f"r{time}",
            "user_id": f"u{user}",
            "business_id": f"b{item}",
            "stars": 4.0,
            "date": moment(time, "%Y-%m-%d %H:%M:%S"),
        }
        for user, item, time in TAKEN
    ]
    items = [
        {"business_id": f"b{item}", "title": f"Bar {item}", "attributes": None, "hours": DETAILS}
        for item in range(ITEMS)
    ]
    return {
        "yelp_academic_dataset_review.json": lines(*reviews),
        "yelp_academic_dataset_business.json": lines(*items),
        "yelp_academic_dataset_user.json": lines(*({"user_id": f"u{user}", "fans": 1} for user in range(USERS))),
    }


def h_and_m() -> dict[str, bytes]:
    taken = [f"{moment(time, '%Y-%m-%d')},c{user},010{item},0.05,2" for user, item, time in TAKEN]
    return {
        "transactions_train.csv": lines("t_dat,customer_id,article_id,price,sales_channel_id", *taken),
        "articles.csv": lines("article_id,title", *(f"010{item},Vest {item}" for item in range(ITEMS))),
        "customers.csv": lines("customer_id,age", *(f"c{user},4{user}" for user in range(USERS))),
    }


def movielens() -> dict[str, bytes]:
    movies = "".join(f"{item}::Mis\u00e9rables {item} (1995)::Drama|War\n" for item in range(ITEMS))
    return {
        "ml-1m/ratings.dat": lines(*(f"{user}::{item}::5::{time}" for user, item, time in TAKEN)),
        "ml-1m/movies.dat": movies.encode("latin-1"),
        "ml-1m/users.dat": lines(*(f"{user}::F::25::3::55117" for user in range(USERS))),
        "ml-1m/README": b"about",
    }


def retailrocket() -> dict[str, bytes]:
    taken = [f"{time * 1_000},{user},view,{item}," for user, item, time in TAKEN]
    head = "timestamp,itemid,property,value"
    return {
        "events.csv": lines("timestamp,visitorid,event,itemid,transactionid", *taken),
        "item_properties_part1.csv": lines(head, *(f"5,{item},title,shoe {item}" for item in range(ITEMS))),
        "item_properties_part2.csv": lines(
            head,
            *(f"9,{item},categoryid,new" for item in range(ITEMS)),
            *(f"6,{item},categoryid,old" for item in range(ITEMS)),
        ),
    }


def lastfm() -> dict[str, bytes]:
    taken = [
        f'user_{user}\t{moment(time, "%Y-%m-%dT%H:%M:%SZ")}\ta{item % 2}\t"Weird Al\tt{item}\tMix {item}'
        for user, item, time in TAKEN
    ]
    gone = "user_1\t2008-05-01T00:00:00Z\ta1\tX\t\tno id"
    return {"userid-timestamp-artid-artname-traid-traname.tsv": lines(*taken, gone)}


def mind() -> dict[str, bytes]:
    pages = [
        f"{number}\tU{user}\t{moment(time, '%-m/%-d/%Y %-I:%M:%S %p')}\tN1 N2\tN{(item + 1) % ITEMS}-0 N{item}-1"
        for number, (user, item, time) in enumerate(TAKEN)
    ]
    news = [f'N{item}\tnews\tworld\t"News" {item}\tabout\thttps://x\t[]\t[]' for item in range(ITEMS)]
    return {"behaviors.tsv": lines(*pages), "news.tsv": lines(*news)}


ROWS = {row.split(" | ")[0].strip("| "): re.findall(r"`(towers prepare [^`]+)`", row) for row in TABLE.splitlines()}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("files", "commands", "column"),
    [
        (movielens, ROWS["MovieLens 100K, 1M, latest"], "title"),
        (
            amazon_2018,
            [ROWS["Amazon reviews 2014, 2018"][0] + " --items meta_Beauty.json.gz --on-bad-rows skip"],
            "title",
        ),
        (amazon_2023, [*ROWS["Amazon reviews 2023"], BLOCKS["Amazon"][0]], "title"),
        (yelp, ROWS["Yelp"], "title"),
        (h_and_m, ROWS["H&M (Kaggle)"], "title"),
        (retailrocket, ROWS["RetailRocket"], None),
        (amazon, [BLOCKS["Amazon"][1], *re.findall(r"```sh\n(.*?)```", TABLE, re.DOTALL)], "title"),
        (amazon, [BLOCKS["Amazon"][2]], None),
        (retailrocket, BLOCKS["RetailRocket"], "categoryid"),
        (lastfm, BLOCKS["Last.fm 1K"], "title"),
        (mind, BLOCKS["MIND"], "title"),
    ],
)
def test_the_commands_for_a_public_data_set_make_one(
    tmp_path: Path, files: Callable[[], dict[str, bytes]], commands: list[str], column: str | None
) -> None:
    assert commands
    for name, content in files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = ["bash", "-ec", "\n".join(commands)]
    done = subprocess.run(shell, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning: no column of times" not in done.stderr
    data = Dataset.open(tmp_path / "dataset")
    assert (data.manifest.users, data.manifest.items, data.manifest.split.kind) == (USERS, ITEMS, "global_time")
    shown = len(TAKEN) if files is mind else 0
    assert sum(data.manifest.events.values()) == len(TAKEN) + shown
    if column is not None:
        assert not any(value is None for value in data.items[column])
        assert column != "categoryid" or set(data.items[column]) == {"new"}
