"""The HTTP interface changes only on purpose: the document is the committed one."""

import json

from tools.openapi import COMMITTED, document


def test_the_document_is_the_committed_one() -> None:
    now, committed = json.loads(document()), json.loads(COMMITTED.read_text(encoding="utf-8"))
    changed = {
        path for path in now["paths"] | committed["paths"] if now["paths"].get(path) != committed["paths"].get(path)
    }
    schemas = now["components"]["schemas"], committed["components"]["schemas"]
    changed |= {name for name in schemas[0] | schemas[1] if schemas[0].get(name) != schemas[1].get(name)}
    assert not changed, "callers would notice; if that is meant: python tools/openapi.py, and say so in CHANGELOG.md"
    assert now == committed
