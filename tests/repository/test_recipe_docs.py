"""Every setting is documented, with the default that the code has."""

import json
import re
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from tests.support.paths import ROOT
from towers.config.features import Feature
from towers.config.losses import LOSSES
from towers.config.recipe import Config
from towers.config.samplers import SAMPLERS

PAGE = (ROOT / "docs" / "model" / "recipes.md").read_text(encoding="utf-8")
OBJECTIVES = (ROOT / "docs" / "model" / "objectives.md").read_text(encoding="utf-8")
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


def rows_of(section: str) -> list[str]:
    """The table rows under the heading of one section."""
    below = PAGE.split(f"`[{section}]`", 1)[1] if section != "similarity" else PAGE.split("and `[similarity]`", 1)[1]
    return [line for line in below.split("\n## ", 1)[0].splitlines() if line.startswith("|")]


def shown(default: object) -> str:
    return json.dumps(list(default) if isinstance(default, tuple) else default)


def listed(default: object) -> str:
    """A default as the table of features writes it, in a pattern: `mean`, 0.1, 10,000, false, `[]`."""
    if isinstance(default, str | tuple):
        return re.escape(f"`{default if isinstance(default, str) else shown(default)}`")
    return re.escape(str(default).lower() if isinstance(default, bool) else f"{default:,g}")


@pytest.mark.parametrize("section", ["data", "model", "contrast", "distillation", "optimizer", "train", "similarity"])
def test_every_setting_has_its_row_and_default(section: str) -> None:
    model = Config.model_fields[section].annotation
    assert model is not None
    for key, default in settings(model):
        rows = [line for line in rows_of(section) if f"`{key}`" in line]
        assert rows, f"docs/model/recipes.md has no row for {section}.{key}"
        if not key.startswith("columns.") and default is not None:
            assert any(f"| `{shown(default)}` |" in row for row in rows), f"{section}.{key}: not its default {default}"


@pytest.mark.parametrize(
    ("section", "model"),
    [("loss", each) for each in LOSSES] + [("sampler", each) for each in SAMPLERS],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_choice_and_its_options_are_described(section: str, model: type[BaseModel]) -> None:
    name = get_args(model.model_fields["name"].annotation)[0]
    rows = rows_of(section)
    assert any(f"`{name}`" in row for row in rows if "| `name` |" in row)
    for key, field in model.model_fields.items():
        if key == "name":
            continue
        told = [row for row in rows if f"`{key}`" in row.split("|")[1]]
        assert told, f"docs/model/recipes.md has no row for {section}.{key}"
        default = "none" if field.default is None or field.is_required() else f"`{shown(field.default)}`"
        assert any(row.split("|")[2].strip() == default for row in told), f"{name}.{key}: not its default {default}"


@pytest.mark.parametrize("model", FEATURE_KINDS, ids=lambda model: model.__name__)
def test_every_feature_kind_and_its_settings_are_described(model: type[BaseModel]) -> None:
    kinds = get_args(model.model_fields["kind"].annotation)
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{kinds[0]}`" in line.split("|")[1]]
    assert rows
    assert all(f"`{kind}`" in rows[0] for kind in kinds)
    (of_all,) = re.findall(r"^Every kind takes .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    for key, field in model.model_fields.items():
        if key != "kind":
            told = f"`{key}`" if field.default is None else rf"`{key}` \({listed(field.default)}[,)]"
            assert re.search(told, rows[0] + of_all), f"docs/model/recipes.md does not say {told} of {kinds[0]}"


@pytest.mark.parametrize("model", [*LOSSES, *SAMPLERS], ids=lambda model: model.__name__)
def test_the_readmes_tables_name_every_choice_with_formula_and_source(model: Any) -> None:
    name = get_args(model.model_fields["name"].annotation)[0]
    rows = [line for line in OBJECTIVES.splitlines() if line.startswith(f"| `{name}` | `{model.formula}` |")]
    assert len(rows) == 1
    assert rows[0].endswith(f"| {model.paper} |")
