"""Every setting is documented, with the default that the code has."""

import json
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from towers.config import Config, Feature

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
FEATURE_KINDS = get_args(get_args(Feature)[0])


def settings(model: type[BaseModel], prefix: str = "") -> list[tuple[str, object]]:
    found = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += settings(inner, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", field.default))
    return found


@pytest.mark.parametrize("section", ["data", "model", "loss", "sampler", "optimizer", "train"])
def test_every_setting_has_its_row_and_default(section: str) -> None:
    model = Config.model_fields[section].annotation
    assert model is not None
    for key, default in settings(model):
        full = f"{section}.{key}"
        rows = [
            line for line in PAGE.splitlines() if line.startswith("|") and (f"`{key}`" in line or f"`{full}`" in line)
        ]
        assert rows, f"docs/recipes.md has no row for {full}"
        if not key.startswith("columns.") and default is not None:
            shown = json.dumps(list(default) if isinstance(default, tuple) else default)
            assert any(f"| `{shown}` |" in row for row in rows), (
                f"docs/recipes.md: {full} does not say its default {shown}"
            )


@pytest.mark.parametrize("model", FEATURE_KINDS, ids=lambda model: model.__name__)
def test_every_feature_kind_and_its_settings_are_described(model: type[BaseModel]) -> None:
    kinds = get_args(model.model_fields["kind"].annotation)
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{kinds[0]}`" in line.split("|")[1]]
    assert rows
    assert all(f"`{kind}`" in rows[0] for kind in kinds)
    for key in set(model.model_fields) - {"kind"}:
        assert f"`{key}`" in PAGE, f"docs/recipes.md does not name {key} of {kinds[0]}"
