"""Operators killed at random moments; forked from one process, so that a round costs no start of Python.

In: a root with bundles, rounds, a seed. Out: one JSON line a round: what the operator said it would do, what it said
was done, and the bytes of `active.json` after it was killed.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from serving.bundle.versions import Versions

NAMES = ("a", "b", "c", "d")
FEW = 4  # changes done before a kill, at most


def operate(root: Path, out: int, seed: int) -> None:
    """Changes `active.json` until it is killed; says each change before it begins, and that it is done."""
    chance = random.Random(seed)
    versions = Versions(root)
    while True:
        active = versions.read()
        others = [name for name in NAMES if name != active.active]
        changes = [["activate", chance.choice(NAMES)], ["set_canary", chance.choice(others), 0.25], ["clear_canary"]]
        change = chance.choice(changes + ([["rollback"]] if active.previous else []))
        os.write(out, json.dumps(["begin", *change]).encode() + b"\n")
        getattr(versions, str(change[0]))(*change[1:])
        os.write(out, b'["done"]\n')


def main(root: Path, rounds: int, seed: int) -> None:
    """Runs and kills one operator after the other."""
    chance = random.Random(seed)
    for number in range(rounds):
        reader, writer = os.pipe()
        operator = os.fork()
        if operator == 0:
            os.close(reader)
            operate(root, writer, seed + number)
        os.close(writer)
        # So many changes are done, and then the kill strikes within the next one, however slow the disk is.
        said, done, begin = b"", chance.randrange(FEW), time.monotonic()
        while said.count(b"begin") <= done:
            said += os.read(reader, 65_536)
        time.sleep(chance.random() * (time.monotonic() - begin) / (done + 1))
        os.kill(operator, signal.SIGKILL)
        while part := os.read(reader, 65_536):
            said += part
        os.close(reader)
        _, status = os.waitpid(operator, 0)
        content = (root / "active.json").read_bytes().decode("latin-1")
        told = [json.loads(line) for line in said.splitlines() if line.endswith(b"]")]
        print(json.dumps({"killed": os.WTERMSIG(status), "said": told, "active": content}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
