"""Writes docs/service/openapi.json: the document of a service whose bundle is not open yet.

It names no bundle's features. `python tools/openapi.py` after a change of the routes that is meant; a test compares the
two.
"""

import json
from pathlib import Path

from serving.http.app import create_app
from serving.settings import Settings

COMMITTED = Path(__file__).parent.parent / "docs" / "service" / "openapi.json"


def document() -> str:
    """The document as it is now."""
    app = create_app(Settings(bundle=Path("bundle")))
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    COMMITTED.write_text(document(), encoding="utf-8")
