"""A recipe's mistakes name the key, its value, what is allowed and the nearest right name."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from tests.support.paths import ROOT
from towers.config.explain import explain
from towers.config.recipe import Config, load_config, parse_config
from towers.config.section import Section
from towers.config.sections import ContrastConfig
from towers.errors import ConfigError

READY = sorted((ROOT / "towers" / "recipes").glob("*.toml"))

MISTAKES = [
    ({"los": {}}, "los: no such key; a recipe allows task, data, features, model, loss", "'loss'"),
    ({"loss": {"nmae": "x"}}, "loss.nmae: no such key; loss allows bottleneck", "'name'"),
    ({"loss": {"name": "sampled_sofmax"}}, "loss.name: must be one of full_softmax, sampled", "'sampled_softmax'"),
    (
        {"features": {"query": {"a": {"kind": "catgorical"}}}},
        "features.query.a.kind: must be one of id, cat",
        "'categorical'",
    ),
    # A feature whose own name is a kind's name: the union's tag must not be taken for it.
    (
        {"features": {"query": {"id": {"kind": "id", "min_cont": 1}}}},
        "features.query.id.min_cont: no such key",
        "'min_count'",
    ),
    ({"features": {"query": {"a": {}}}}, "features.query.a.kind: must be one of", "got nothing"),
    ({"train": {"epochs": 0}}, "train.epochs: Input should be greater than or equal to 1", "got 0"),
    ({"train": {"metric": "auc"}}, "train.metric: must be recall@K, ndcg@K or precision@K with K a", "got 'auc'"),
    ({"train": {"metric": "recall@0"}}, "train.metric: must be", "from 1, such as recall@20; got 'recall@0'"),
    ({"train": {"metric": "recall@٢"}}, "train.metric: must be", "got 'recall@٢'"),
    ({"train": {"metric": "recall@5\n"}}, "train.metric: must be", r"got 'recall@5\n'"),
    ({"data": {"columns": {"usr": "x"}}}, "data.columns.usr: no such key", "'user'"),
    ({"data": {"valid_share": 0.5, "test_share": 0.5}}, "data: valid_share + test_share is 1", "below 1"),
    ({"model": {"query_layers": [64]}}, "model: query_layers and candidate_layers need combine = 'concat'", "'sum'"),
    ({"model": {"temperature": float("nan")}}, "model.temperature: Input should be a finite number", "nan"),
    ({"train": {"epochs": "3"}}, "train.epochs: Input should be a valid integer", "got '3'"),
    ({"train": {"batch_size": 1}}, "train.batch_size: Input should be greater than or equal to 2", "got 1"),
    ({"data": {"refit": "yes"}}, "data.refit: must be true, false or 'timed'", "got 'yes'"),
    ({"model": 3}, "model: must be a table of dimension, similarity", "got 3"),
    ({"features": {"changes": 1}}, "features.changes: must be a table", "got 1"),
    ({"loss": {"name": "nce", "correction": 1.0}}, "loss.correction: no such key; loss allows", "log_z"),
    (
        {"loss": {"name": "nce", "log_z": "lerned"}},
        "loss.log_z: must be 'learned', 'per_query' or a number",
        "'learned'",
    ),
    ({"loss": {"name": "gbce", "calibration": 1.5}}, "loss.calibration: Input should be less than", "got 1.5"),
    ({"loss": {"name": "gbce", "calibration": -0.5}}, "loss.calibration: Input should be greater than", "got -0.5"),
    ({"optimizer": {"l2": -0.1}}, "optimizer.l2: Input should be greater than or equal to 0", "got -0.1"),
    (
        {"features": {"query": {"past": {"kind": "sequence", "forward": "gelu"}}}},
        "features.query.past.forward: must be one of relu, swiglu",
        "got 'gelu'",
    ),
    (
        {"features": {"query": {"past": {"kind": "sequence", "gated": "yes"}}}},
        "features.query.past.gated: Input should be a valid boolean",
        "got 'yes'",
    ),
    (
        {"features": {"query": {"past": {"kind": "sequence", "positions": "distances"}}}},
        "features.query.past.positions: must be one of absolute, distance",
        "'distance'",
    ),
    ({"sampler": {"name": "unifrom"}}, "sampler.name: must be one of in_batch, uniform", "'uniform'"),
    ({"sampler": {"name": "uniform", "k": 5}}, "sampler.k: no such key; sampler allows negatives", "distinct"),
    (
        {"sampler": {"name": "mixed", "parts": [{"name": "in_batch"}, {"name": "mixed"}]}},
        "sampler.parts.1.name: must be one of in_batch, uniform",
        "got 'mixed'",
    ),
    ({"sampler": {"name": "mixed", "parts": [{"name": "uniform"}]}}, "sampler: parts: a mixture needs", "got 1"),
]


@pytest.mark.parametrize(("raw", "start", "hint"), MISTAKES)
def test_a_mistake_names_key_and_remedy(raw: dict[str, object], start: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(raw, "my.toml")
    message = str(raised.value)
    assert message.startswith(f"my.toml: {start}")
    assert hint in message


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ({"model": {"query_layers": 64}}, "model.query_layers: must be a list, such as [64]; got 64"),
        (
            {"model": {"query_layers": "a"}},
            "model.query_layers: must be a list, each item a whole number from 1 to 2147483647; got 'a'",
        ),
        ({"loss": {"matryoshka": 8}}, "loss.matryoshka: must be a list, such as [8]; got 8"),
        ({"data": {"event_types": "buyy"}}, "data.event_types: must be a list, such as ['buyy']; got 'buyy'"),
        ({"data": {"event_types": 3}}, "data.event_types: must be a list, each item text; got 3"),
        (
            {"features": {"query": {"past": {"kind": "history", "events": "buy"}}}},
            "features.query.past.events: must be a list, such as ['buy']; got 'buy'",
        ),
        ({"sampler": {"name": "mixed", "parts": 3}}, "sampler.parts: must be a list, each item a table; got 3"),
        (
            {"model": {"prior": "of"}},
            "model.prior: must be 'off', 'validation' or a table of days, users_alike, now, past, length; got 'of'; "
            "did you mean 'off'?",
        ),
        ({"model": {"prior": {"days": 0}}}, "model.prior.days: Input should be greater than or equal to 1; got 0"),
        (
            {"model": {"prior": {"dyas": 7}}},
            "model.prior.dyas: no such key; model.prior allows days, users_alike, now, past, length; did you mean "
            "'days'?",
        ),
        ({"model": {"norm_exponent": 3}}, "model.norm_exponent: must be 'validation' or a number from -1 to 1; got 3"),
        ({"train": {"explode_factor": 1}}, "train.explode_factor: must be a number from 2 or 'off'; got 1"),
        (
            {"features": {"candidate": {"a": {"kind": "id", "start_window": 0}}}},
            "features.candidate.a.start_window: must be a whole number from 1 to 2147483647 or 'list'; got 0",
        ),
        (
            {"features": {"changes": {"query": {"age": 3}}}},
            "features.changes.query.age: must be a table or false; got 3",
        ),
        (
            {"features": {"changes": {"qury": {}}}},
            "features.changes.qury: must be one of query, candidate; got 'qury'; did you mean 'query'?",
        ),
    ],
)
def test_a_union_or_list_is_one_line_in_the_words_of_a_recipe(raw: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(raw, "my.toml")
    assert str(raised.value) == f"my.toml: {line}"


class Bounds(Section):
    """Every pair of bounds that a number beside a word can have."""

    share: Annotated[float, Field(ge=0, lt=1)] | Literal["off"] = "off"
    part: Annotated[float, Field(gt=0, le=1)] | Literal["off"] = "off"
    count: Annotated[int, Field(le=9)] | Literal["off"] = "off"


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("share", "a number from 0 and below 1"),
        ("part", "a number above 0 and up to 1"),
        ("count", "a whole number up to 9"),
    ],
)
def test_bounds_are_words(key: str, allowed: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Bounds.model_validate({key: 11})
    assert explain(raised.value.errors(), Bounds) == f"{key}: must be {allowed} or 'off'; got 11"


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.nam: .*; train\.epochs: "):
        parse_config({"train": {"epochs": -1}, "optimizer": {"nam": "adam"}})


def test_overrides_are_toml_values_and_bare_words(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[train]\nepochs = 3\n")
    config = load_config(recipe, ["train.epochs=7", "optimizer.name=sgd", "model.query_layers=[]"])
    assert config.train.epochs == 7
    assert config.optimizer.name == "sgd"


SPELT = "[features.query]\nuser_id = { kind = 'id' }\nage = { kind = 'numeric' }\n"
DERIVED = "[features.query]\nderive = true\nage = { log = true }\n"
BOTH = {"age": {"log": True}, "zip": {"kind": "hashed"}}


@pytest.mark.parametrize(
    ("recipe", "overrides", "query", "changes"),
    [
        ("", [], None, None),
        ("", ["features.query.age.kind=hashed"], None, {"age": {"kind": "hashed"}}),
        (
            "",
            ["features.query.age.kind=hashed", "features.query.age.buckets=9"],
            None,
            {"age": {"kind": "hashed", "buckets": 9}},
        ),
        ("", ["features.query.age="], None, {"age": False}),
        ("", ["features.query.age.log=true", "features.query.age="], None, {"age": False}),
        ("", ["features.query={ age = { kind = 'hashed' } }"], {"age": "hashed"}, None),
        ("", ["features.query.derive=false", "features.query.age.kind=hashed"], {"age": "hashed"}, None),
        (SPELT, [], {"user_id": "id", "age": "numeric"}, None),
        (SPELT, ["features.query.zip.kind=hashed"], {"user_id": "id", "age": "numeric", "zip": "hashed"}, None),
        (SPELT, ["features.query.age.kind=hashed"], {"user_id": "id", "age": "hashed"}, None),
        (SPELT, ["features.query.age="], {"user_id": "id"}, None),
        (SPELT, ["features.query="], None, None),
        (DERIVED, [], None, {"age": {"log": True}}),
        (DERIVED, ["features.query.age.log=false"], None, {"age": {"log": False}}),
        (DERIVED + "zip = { kind = 'hashed', buckets = 5 }", ["features.query.zip.buckets="], None, BOTH),
        (
            DERIVED,
            ["features.query.age=", "features.query.zip.kind=hashed"],
            None,
            {"age": False, "zip": {"kind": "hashed"}},
        ),
        (DERIVED.replace("true\n", "false\n", 1).replace("log", "kind = 'numeric', log"), [], {"age": "numeric"}, None),
        ("[features.query]\nderive = { kind = 'hashed' }\n", [], {"derive": "hashed"}, None),
    ],
)
def test_a_feature_of_a_side_changes_the_spelt_out_side_or_else_the_derived_one(
    tmp_path: Path, recipe: str, overrides: list[str], query: dict[str, str] | None, changes: dict[str, Any] | None
) -> None:
    (tmp_path / "r.toml").write_text("[features.candidate]\nitem_id = { kind = 'id' }\n" + recipe)
    config = load_config(tmp_path / "r.toml", overrides)
    found = config.features.query
    assert (found and {name: each.kind for name, each in found.items()}) == query
    assert config.features.changes == (changes and {"query": changes})
    assert list(config.features.candidate or {}) == ["item_id"]
    # What a search and a run keep of the recipe reads back as the same.
    assert parse_config(config.model_dump(mode="json", exclude_unset=True, exclude_none=True)) == config


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("", ["features.query.age.kind=numerc"], r"features\.query\.age\.kind: must be one of id.*mean 'numeric'"),
        (
            "",
            ["features.query.age.kind=numeric", "features.query.age.buckets=3"],
            r"features\.query\.age\.buckets: no such key",
        ),
        ("", ["features.query.age.kind="], r"no such setting to take out.*--set features\.query\.age="),
        (DERIVED, ["features.query.age.kind="], r"no such setting to take out.*--set features\.query\.age="),
        ("", ["features.query.age=3"], r"query\.age: must be a table of settings, or false.*got 3"),
        ("", ["features.qeury.age.kind=numeric"], r"features\.qeury: no such key.*did you mean 'query'"),
        (
            DERIVED,
            ["task=similarity", "similarity.column=x"],
            r"features\.query: task = 'similarity' trains the item tower",
        ),
    ],
)
def test_a_change_of_a_derived_feature_that_cannot_be_is_refused_without_a_data_set(
    tmp_path: Path, recipe: str, overrides: list[str], message: str
) -> None:
    (tmp_path / "r.toml").write_text(recipe)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "r.toml", overrides)


def test_naming_another_loss_clears_the_options_of_the_one_before(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[loss]\nname = "sampled_softmax"\ncorrection = 0.5\n[model]\ntemperature = 0.1\n')
    config = load_config(recipe, ["model.temperature=", "loss.margin=0.3", "loss.name=am_softmax"])
    assert (config.loss.name, config.loss.margin) == ("am_softmax", 0.3)  # type: ignore[union-attr]
    assert config.temperature is None
    assert load_config(recipe, ["loss.name=sampled_softmax"]).loss.correction == 0.5  # type: ignore[union-attr]
    assert load_config(recipe, ["loss.name=full_softmax"]).negatives is None
    assert load_config(recipe).negatives.name == "in_batch"  # type: ignore[union-attr]
    recipe.write_text('[sampler]\nname = "uniform"\n')
    assert load_config(recipe, ["loss.name=full_softmax", "sampler="]).negatives is None
    for order in (["loss=", "loss.name=bsl"], ["loss.correction=0.3", "loss=", "loss.name=nce", "loss.name=bsl"]):
        found = load_config("ml-1m", order).loss
        assert (found.name, found.correction) == ("bsl", 0.0)  # type: ignore[union-attr]
    assert load_config("ml-1m", ["loss.name=", "loss.name=bsl"]).loss.name == "bsl"
    assert load_config("ml-1m", ["loss.name=bsl", "loss="]).loss == load_config("ml-1m", ["loss="]).loss
    named = load_config("default", ["features.candidate={derive=true}", "features.candidate.name="])
    assert named.features.changes == {"candidate": {"name": False}}
    assert load_config("ml-1m").distillation.on and not load_config("ml-1m", ["distillation="]).distillation.on
    with pytest.raises(ConfigError, match="sampler="):
        load_config(recipe, ["loss.name=full_softmax"])
    recipe.write_text("[contrast]\nweight = 0.1\nwindow = 5\n")
    assert load_config(recipe).contrast.window == 5
    assert load_config(recipe, ["contrast="]).contrast == ContrastConfig()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.clipnorm=", r"optimizer\.clipnorm: no such key; optimizer allows .*; did you mean 'clip_norm'\?"),
        ("trian.epochs=", r"trian: no such key; a recipe allows .*; did you mean 'train'\?"),
        ("loss.marginn=", r"loss\.marginn: no such key; loss allows "),
        ("features.query.age=", r"no such key to take out; features\.query holds user_id$"),
        (
            "data.lists.tags=",
            r"data\.lists holds nothing; an empty text needs its quotes: --set 'data\.lists\.tags=\"\"'$",
        ),
        ("train.epochs=5\ntrain.seed=3", r"expected one value"),
        ("train.epochs=2147483648", r"train\.epochs: Input should be less than or equal to 2147483647"),
    ],
)
def test_an_override_that_would_change_nothing_or_too_much_is_refused(
    tmp_path: Path, override: str, message: str
) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[features.query]\nuser_id = { kind = "id" }\n[optimizer]\nclip_norm = 5.0\n')
    with pytest.raises(ConfigError, match=message):
        load_config(recipe, [override])
    with pytest.raises(ConfigError, match=r"data\.columns: must be a table"):
        load_config(recipe, ["data.columns.user=", "data.columns=5"])
    # What is not there, but could be, may be taken out.
    assert load_config(recipe, ["model.temperature=", "loss.correction="]) == load_config(recipe)


@pytest.mark.parametrize("override", ["epochs=3", "train.epochs", "train.=3", "train.epochs.deeper=3"])
def test_an_override_of_a_wrong_form_is_refused(tmp_path: Path, override: str) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[train]\nepochs = 3\n")
    with pytest.raises(ConfigError, match="--set"):
        load_config(recipe, [override])


@pytest.mark.parametrize("text", ["[train", "a = \n"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(text)
    with pytest.raises(ConfigError, match=r"r\.toml: not valid TOML"):
        load_config(recipe)


def test_a_recipe_may_begin_with_a_byte_order_mark_as_windows_writes_it(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_bytes(b"\xef\xbb\xbf[model]\r\ndimension = 32\r\n")
    assert load_config(recipe).model.dimension == 32


@pytest.mark.parametrize("name", ["absent", "folder/default", "default.toml"])
def test_a_missing_recipe_is_refused_with_the_names_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ", ".join(path.stem for path in READY)
    with pytest.raises(ConfigError, match=rf"^{name}: no such recipe file; those that come with towers are {names}$"):
        load_config(name)


@pytest.mark.parametrize("recipe", READY, ids=lambda path: path.stem)
def test_a_ready_recipe_is_read_by_its_name_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(recipe.stem) == load_config(Path(recipe.stem)) == load_config(recipe)
    Path(recipe.stem).mkdir()
    assert load_config(recipe.stem) == load_config(recipe), "a folder is no recipe"
    Path(recipe.stem).rmdir()
    Path(recipe.stem).write_text("[train]\nepochs = 77\n")
    assert load_config(recipe.stem).train.epochs == 77, "a file of that name comes first"


@pytest.mark.parametrize("recipe", READY, ids=lambda path: path.name)
def test_ready_recipes_load(recipe: Path) -> None:
    wanted = tomllib.loads(recipe.read_text())
    loaded = load_config(recipe).model_dump(mode="json", exclude_unset=True)
    for section, keys in wanted.items():
        if section == "task":
            assert loaded[section] == keys
        else:
            assert {key: loaded[section][key] for key in keys} == keys


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.epochs = 3  # type: ignore[misc]
