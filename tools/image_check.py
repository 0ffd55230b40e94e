"""Builds the Dockerfile where no Docker engine runs, starts the service from the image and asks it one POST /recall.

In: the tree, and demo/bundle (a small bundle is made where there is none). Out: exit 0 and nothing left behind.
Needs root, debootstrap and buildah. The host's pip settings and the files they name are lent to the build, not copied.
"""

import configparser
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import polars

from pipelines.console import say

SMALL = {"users": "500", "items": "1000", "events": "20000"}
START_TIMEOUT_S = 120


def main() -> None:
    """Runs the whole check; the first step that fails ends it with one line."""
    if os.geteuid() != 0:
        sys.exit("error: image-check needs root, for debootstrap and buildah's chroot")
    for tool in ("debootstrap", "buildah"):
        if shutil.which(tool) is None:
            sys.exit(f"error: {tool} is missing; apt-get install debootstrap buildah")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="image-check-") as name:
        work = Path(name)
        bundle = Path("demo/bundle").absolute()
        if not (bundle / "manifest.json").exists():
            bundle = _small_bundle(work)
        store = _Store(work)
        _base_image(work, store)
        say("image-check: building the Dockerfile")
        lent = _lent_pip_settings(work)
        base = "BASE_IMAGE=localhost/towers-base"
        store.run("bud", "--isolation", "chroot", "--format", "docker", "--build-arg", base, *lent, "-t", "towers", ".")
        say(f"image-check: built after {time.monotonic() - started:.0f} s; starting the service")
        _ask(work, store, bundle)
    say(f"image-check: passed in {time.monotonic() - started:.0f} s")


class _Store:
    """Buildah with a storage of its own, so that nothing outlives the check."""

    def __init__(self, work: Path) -> None:
        self.words = ["buildah", "--root", f"{work}/storage", "--runroot", f"{work}/run", "--storage-driver", "vfs"]

    def run(self, *words: str) -> str:
        return _call([*self.words, *words])


def _call(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        sys.exit(f"{tail}\nerror: {' '.join(words)} ended with {done.returncode}")
    return done.stdout.strip()


def _small_bundle(work: Path) -> Path:
    say("image-check: no demo/bundle, so a small one is made")
    towers = [sys.executable, "-m", "pipelines"]
    world, dataset, run, bundle = (str(work / name) for name in ("world", "dataset", "trained", "bundle"))
    sizes = [word for name, count in SMALL.items() for word in (f"--{name}", count)]
    sources = [f"--{name}={world}/{name}.parquet" for name in ("events", "items", "users")]
    recipe = ["--config", "default", "--set", "train.epochs=1"]
    _call([*towers, "synth", "--out", world, *sizes])
    _call([*towers, "prepare", *sources, "--out", dataset])
    _call([*towers, "train", "--dataset", dataset, *recipe, "--out", run])
    _call([*towers, "export", "--run", run, "--out", bundle])
    _call([*towers, "index", "--bundle", bundle])
    return Path(bundle)


def _base_image(work: Path, store: _Store) -> None:
    say("image-check: base image, a minimal Debian with Python")
    root = work / "root"
    packages = "python3,python3-venv,ca-certificates"
    mirror = [os.environ["DEBIAN_MIRROR"]] if "DEBIAN_MIRROR" in os.environ else []
    _call(["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(root), *mirror])
    container = store.run("from", "scratch")
    store.run("copy", "--quiet", container, str(root), "/")
    store.run("commit", "--quiet", "--format", "docker", "--rm", container, "towers-base")
    shutil.rmtree(root)


def _lent_pip_settings(work: Path) -> list[str]:
    """The ``--volume`` options that give pip in the build what pip has here: settings, certificates, wheel folders."""
    settings = configparser.RawConfigParser()
    settings.read("/etc/pip.conf")
    if not settings.has_section("global"):
        settings.add_section("global")
    for name, value in os.environ.items():
        if name.startswith("PIP_"):
            settings.set("global", name.removeprefix("PIP_").lower().replace("_", "-"), value)
    merged = work / "pip.conf"
    with merged.open("w", encoding="utf-8") as file:
        settings.write(file)
    words = {word for section in settings.sections() for _, value in settings.items(section) for word in value.split()}
    paths = sorted(word for word in words if word.startswith("/") and Path(word).exists())
    volumes = [f"{merged}:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in paths)]
    return [word for volume in volumes for word in ("--volume", volume)]


def _ask(work: Path, store: _Store, bundle: Path) -> None:
    image = json.loads(store.run("inspect", "--type", "image", "localhost/towers"))["Docker"]["config"]
    container = store.run("from", "localhost/towers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    in_image = ["run", "--isolation", "chroot", "--volume", f"{bundle}:/bundle:ro", "--env", f"TOWERS_PORT={port}"]
    in_image += [container, "--"]
    if store.run(*in_image, "id", "-u") == "0":
        sys.exit("error: the image runs as root")
    url = f"http://127.0.0.1:{port}"
    with _service([*store.words, *in_image, *image["Entrypoint"], *(image["Cmd"] or [])], work / "service.log", url):
        kind, *words = image["Healthcheck"]["Test"]
        if kind != "CMD":
            sys.exit(f"error: the health check is a {kind}, expected CMD")
        store.run(*in_image, *words)
        user = polars.read_parquet(bundle / "query_ids.parquet", n_rows=1)["query_id"][0]
        reply = httpx.post(f"{url}/recall", json={"user_id": user, "k": 5}, timeout=30)
        say(f"image-check: POST /recall for user {user!r}: {reply.status_code} {reply.text}")
        if reply.status_code != 200 or len(reply.json()["items"]) != 5:
            sys.exit("error: expected status 200 and 5 items")


@contextmanager
def _service(words: list[str], log: Path, url: str) -> Iterator[None]:
    with log.open("wb") as output:
        # A session of its own: stopping it stops the service under buildah, too.
        service = subprocess.Popen(
            words, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _wait_until_ready(service, url, log)
            yield
        finally:
            os.killpg(service.pid, signal.SIGTERM)
            service.wait(timeout=30)


def _wait_until_ready(service: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and service.poll() is None:
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
    state = "is not ready in time" if service.poll() is None else f"ended with {service.poll()}"
    sys.exit(f"{tail}\nerror: the service {state}")


if __name__ == "__main__":
    main()
