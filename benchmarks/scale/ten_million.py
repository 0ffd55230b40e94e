"""Ten million items x 64 on one machine: time and peak memory of every stage, from the world to an answered request.

Claim: synth, prepare, train (one epoch), export, index and serve complete, a known user gets 100 items, and so does a
history that the bundle has not seen; the index is built in 5 minutes; the service is ready in 90 s, although nothing of
the bundle is in the file cache, and from then on answers users at random and those with the longest histories, one at a
time, within 5 ms (median) and 20 ms (p99). Each stage is the command a user would run, in a process of its own. The
recipe is that of a million items with user ids: category, tags and title are features, so that items without an event
are served, too, with vectors of their own.
With `--work` an interrupted run resumes after the last stage that it finished. `--docs` writes the table of
docs/project/scale.md out of the results. Writes benchmarks/scale/results/scale.json; exits with 1 where the claim
fails.
"""

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl

from benchmarks.harness.machine import ROOT, load, verdict, write
from benchmarks.harness.million import RECIPE
from benchmarks.harness.pages import source, with_block
from benchmarks.harness.process_memory import MeasuredProcess
from benchmarks.harness.resumable import Store

ITEMS, USERS, EVENTS, K = 10_000_000, 200_000, 20_000_000, 100
START_TIMEOUT_S = 1_200
ASKED, BUILD_S, READY_S, MEDIAN_MS, P99_MS = 500, 300, 90, 5, 20
PAGE = ROOT / "docs" / "project" / "scale.md"
BEGIN, END = "<!-- table: scale -->\n", "<!-- /table -->"
CHANGES = ("features.query.user_id.kind=id", "train.epochs=1", "train.checkpoint_steps=1000000")


def main(work: Path, items: int, users: int, events: int) -> int:
    world, dataset, run, bundle = (str(work / name) for name in ("world", "dataset", "run", "bundle"))
    recipe = work / "recipe.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    changes = [word for change in CHANGES for word in ("--set", change)]
    sizes = {"users": users, "items": items, "events": events}
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    store, stages = Store(work / "finished"), {}
    for name, words in (
        ("synth", ("--out", world, *options)),
        ("prepare", ("--events", world, "--out", dataset)),
        ("train", ("--dataset", dataset, "--config", str(recipe), "--out", run, *changes)),
        ("export", ("--run", run, "--out", bundle)),
        ("index", ("--bundle", bundle)),
    ):
        stages[name] = store.run({"stage": name, **sizes}, lambda name=name, words=words: stage(name, *words))
        if name == "prepare":
            shutil.rmtree(world, ignore_errors=True)  # as large as all that comes after it
    stages["serve"], answers = served(Path(bundle))
    bytes_of = {name: folder_bytes(work / name) for name in ("dataset", "run", "bundle")}
    manifest = json.loads((work / "bundle" / "manifest.json").read_text(encoding="utf-8"))
    features = json.loads((work / "run" / "features.json").read_text(encoding="utf-8"))
    claims = {
        "every item is in the bundle": manifest["items"] == items,
        **{f"{name} is answered with {K} items": len(answer) == K for name, answer in answers.items()},
        f"the index is built in {BUILD_S} s": manifest["index"]["measured"]["build_s"] <= BUILD_S,
        f"ready in {READY_S} s": stages["serve"]["seconds"] <= READY_S,
    }
    for who, (median, p99) in stages["serve"]["request_ms"].items():
        claims[f"{who}: median at most {MEDIAN_MS} ms"] = median <= MEDIAN_MS
        claims[f"{who}: p99 at most {P99_MS} ms"] = p99 <= P99_MS
    result = {
        "claims": claims,
        "sizes": sizes,
        "recipe": RECIPE,
        "changes": CHANGES,
        "stages": stages,
        "bytes": bytes_of,
        "items_with_a_row": next(each["size"] for each in features["candidate"] if each["name"] == "item_id"),
        "index": manifest["index"],
    }
    print(write(__file__, "scale", result))
    print(table(result))
    return verdict(result)


def stage(*words: str) -> dict[str, Any]:
    """Runs `towers WORDS`; a failure ends the benchmark."""
    print("$ towers", *words, file=sys.stderr, flush=True)
    done = MeasuredProcess(command(*words), cwd=ROOT, stdout=sys.stderr).wait()
    if done.pop("code"):
        sys.exit(f"error: towers {words[0]} failed after {done}")
    print(done, file=sys.stderr, flush=True)
    return done


def served(bundle: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Serves the bundle from the disk; seconds until ready, the peaks, milliseconds of requests, and two answers."""
    known = pl.read_parquet(bundle / "query_ids.parquet")["query_id"]
    taken = pl.read_parquet(bundle / "item_ids.parquet", n_rows=3)["item_id"].to_list()
    longest = np.argsort(-np.diff(np.load(bundle / "seen_offsets.npy")), kind="stable")[:ASKED]
    users = {"users at random": known.sample(ASKED, seed=1), "the longest histories": known.gather(longest)}
    forget_pages(bundle)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = MeasuredProcess(command("serve", "--bundle", str(bundle), "--port", str(port)), cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        while not ready(url):
            if server.process.poll() is not None or server.seconds > START_TIMEOUT_S:
                sys.exit(f"error: towers serve was not ready after {server.seconds} s")
            time.sleep(0.1)
        until_ready, request_ms = server.seconds, {}
        with httpx.Client(base_url=url, timeout=60) as client:
            for who, some in users.items():
                took = [timed(client, {"user_id": user}) for user in some]
                request_ms[who] = [round(float(each), 2) for each in np.percentile(took, [50, 99])]
            answers = {
                "a known user": asked(client, {"user_id": known[0]}),
                "a new history": asked(client, {"history": taken}),
            }
    finally:
        server.process.terminate()
        peaks = server.wait()
    return {**peaks, "seconds": until_ready, "request_ms": request_ms}, answers


def forget_pages(folder: Path) -> None:
    """Takes the pages of a folder's files out of the file cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(client: httpx.Client, request: dict[str, Any]) -> float:
    """Milliseconds of one request."""
    start = time.perf_counter()
    asked(client, request)
    return 1e3 * (time.perf_counter() - start)


def asked(client: httpx.Client, request: dict[str, Any]) -> list[Any]:
    """The items that `POST /recall` gives."""
    answer = client.post("/recall", json={"k": K, **request})
    answer.raise_for_status()
    items: list[Any] = answer.json()["items"]
    return items


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pipelines", *words]


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def table(result: dict[str, Any]) -> str:
    """The stages as a Markdown table."""
    lines = [
        "| stage | time | peak memory, of it anonymous | on disk |",
        "|---|---|---|---|",
    ]
    written = {"prepare": "dataset", "train": "run", "index": "bundle"}
    for name, figures in result["stages"].items():
        disk = f"{result['bytes'][written[name]] / 1e9:.1f} GB" if name in written else ""
        what = f"{name}, until ready" if name == "serve" else name
        peaks = f"{figures['peak_bytes'] / 1e9:.1f} GB, {figures['peak_anonymous_bytes'] / 1e9:.1f} GB"
        lines.append(f"| {what} | {figures['seconds']:,.0f} s | {peaks} | {disk} |")
    return "\n".join(lines)


def write_page() -> None:
    """Puts the table between its marks in docs/project/scale.md."""
    result = load("scale")
    requests = ", ".join(
        f"{median:g} and {p99:g} ms for {who}" for who, (median, p99) in result["stages"]["serve"]["request_ms"].items()
    )
    sizes, index = result["sizes"], result["index"]
    rows = (
        f"{table(result)}\n\n{sizes['items']:,} items "
        f"({result['items_with_a_row']:,} of them in training events, and so with a row of their own), "
        f"{sizes['users']:,} users, {sizes['events']:,} events; a request takes {requests} (median and p99, one "
        f"client, {ASKED} users each, the file cache empty at the start), the index finds "
        f"{index['measured']['recall_at_100']:.1%} of the exact first 100.\n\n{source('scale')}\n"
    )
    PAGE.write_text(with_block(PAGE.read_text(encoding="utf-8"), BEGIN, rows, END), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.ten_million", description=__doc__)
    parser.add_argument("--items", type=int, default=ITEMS, help="fewer for a trial")
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--work", type=Path, help="where it works, about 40 GB; default: a temporary folder")
    parser.add_argument("--docs", action="store_true", help="only write the table of docs/project/scale.md")
    given = parser.parse_args()
    if given.docs:
        write_page()
        sys.exit(0)
    if given.work is not None:
        given.work.mkdir(parents=True, exist_ok=True)
        sys.exit(main(given.work, given.items, given.users, given.events))
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(Path(directory), given.items, given.users, given.events))
