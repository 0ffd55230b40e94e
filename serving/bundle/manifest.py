"""The manifest of a bundle: its files, the features that a request may send, and its index.

An invalid `manifest.json` is a `BundleError` that names the file, the key and the rule. Besides the keys of `Manifest`
the file holds `digest`, a hash of all of them: it covers every other file, and the manifest itself.
"""

import hashlib
import json
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from serving.errors import BundleError
from serving.search.scann_parameters import TUNED_K
from serving.search.vector_codes import VectorType

# 2 adds `prior` and `live.events`, 3 `vectors`, 4 `events` of a feature: a reader that ignores them gets other scores.
SCHEMA_VERSION: Literal[4] = 4
READABLE = (1, 2, 3, SCHEMA_VERSION)
MANIFEST = "manifest.json"
DIGEST = "digest"
# Files of directories that users pass instead of a bundle, each found in no other kind (docs/project/design.md).
DATASET_FILE, RUN_FILE = "dataset.json", "summary.json"
EXPORT = "`towers export --run RUN --out BUNDLE`"
BUNDLES_SHOWN = 5

Count = Annotated[int, Field(ge=0)]


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if "\\" in path or path.startswith("/") or not parts or ".." in parts:
        raise ValueError(f"{path!r} is not a path inside the bundle")
    return path


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"this machine's time zone database has no {name!r}; install tzdata") from None
    return name


RelativePath = Annotated[str, AfterValidator(_inside)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FeatureSpec(_Record):
    """One raw input of a tower's `serving_default` signature.

    Attributes:
        name: the tensor's name, and the key in a request's `features`.
        kind: its meaning; "history" takes item ids, newest last, a query's "id" the user id, and its "item" the id of
            the item to find similar items for; "history_times", named after a history, its times in seconds of 1970.
        dtype: the tensor's type. A missing value is "" (string), NaN (float32) or -1 (int64).
        length: None for a scalar per example, a tensor [B]; otherwise a list per example, a tensor [B, L] with
            L <= length, padded at the end with missing values; with kind "vector" L = length, or all missing.
        events: of a "history", the types of the events whose items it takes; none: all.
        time_zone: of an "hour" or a "weekday", the IANA name of the zone in which it reads a time; None is UTC.
    """

    name: str = Field(min_length=1)
    kind: str
    dtype: Literal["string", "float32", "int64"]
    length: int | None = Field(None, ge=1)
    events: tuple[str, ...] = ()
    time_zone: Annotated[str, AfterValidator(_known_zone)] | None = None


class IndexInfo(_Record):
    """The index of a bundle.

    Attributes:
        kind: "exact" has no files; those of "scann" are under `path`.
        path: a directory, relative to the bundle.
        parameters: what the index was built with and is searched with.
        measured: recall against exact search, latency, build time, size; units in the names.
    """

    kind: Literal["exact", "scann"]
    path: RelativePath | None = None
    parameters: dict[str, Any] = {}
    measured: dict[str, Any] = {}

    @property
    def target_k(self) -> int:
        """The k of the recall that it was tuned for."""
        return int(self.measured.get("target_k", TUNED_K))


class FileInfo(_Record):
    """Size and digest of one file of the bundle."""

    bytes: Count
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class LiveInfo(_Record):
    """The part of a journal of live changes that a bundle includes.

    Attributes:
        journal: the identity of the journal.
        items: the sequence number of the last item change in the bundle.
        events: the sequence number of the last event that its prior counts.
    """

    journal: str = Field(min_length=1)
    items: Count
    events: Count = 0


class PriorInfo(_Record):
    """How much recent popularity adds to the score of an item; see `serving.bundle.prior`.

    Attributes:
        days: length of the window of recent events; None for all events.
        users_alike: each event counts 1 / n, n its user's events in the window.
        now: weight of the log share in the window.
        past: weight of the log share in training, subtracted.
        length: what each unit of ``log(1 + length of the history)`` adds to `now`.
        until: time of the latest event counted, in seconds since 1970; None for data without times in a unit.
        folded_until: time of the latest live event that folds added to these counts, likewise; None without one.
        mean_count: mean count of an item in the window.
        event_weight: what an event of the window counts on average.
        new_item: log shares, now and past, of an item without events: the median of new items.
    """

    days: int | None = Field(None, ge=1)
    users_alike: bool = False
    now: float
    past: float = Field(ge=0)
    length: float = 0.0
    until: int | None = None
    folded_until: int | None = None
    mean_count: float = Field(ge=0)
    event_weight: float = Field(1.0, ge=0)
    new_item: tuple[float, float]


class Manifest(_Record):
    """All that a reader must know before it opens another file. `files` covers everything but the manifest.

    `event_types` holds the types of the seen events, each at the place that is its number in their file.
    """

    schema_version: Literal[4] = SCHEMA_VERSION
    model_version: str = Field(min_length=1)
    created_at: datetime
    dimension: int = Field(ge=1)
    vectors: VectorType = "float32"
    metric: Literal["dot", "cosine"]
    items: int = Field(ge=1)
    queries: Count
    query_features: tuple[FeatureSpec, ...]
    candidate_features: tuple[FeatureSpec, ...]
    index: IndexInfo | None = None
    live: LiveInfo | None = None
    prior: PriorInfo | None = None
    segmented_by: str | None = None
    event_types: tuple[str, ...] = ()
    files: dict[RelativePath, FileInfo] = {}
    libraries: dict[str, str] = {}
    lineage: dict[str, Any] = {}
    training: dict[str, Any] = {}

    def query_feature(self, kind: str) -> FeatureSpec | None:
        """The query tower's first feature of that kind, or None."""
        return next((feature for feature in self.query_features if feature.kind == kind), None)

    @property
    def histories(self) -> list[FeatureSpec]:
        """The query tower's lists of items that the query took."""
        return [feature for feature in self.query_features if feature.kind == "history"]

    @property
    def is_similarity(self) -> bool:
        """Whether it was trained with `task = "similarity"`: its queries are items."""
        recipe = self.lineage.get("config")
        return isinstance(recipe, dict) and recipe.get("task") == "similarity"


def read_manifest(bundle: Path) -> Manifest:
    """Reads `manifest.json` of a bundle; one of an earlier release is converted to this schema version.

    Raises:
        BundleError: it is missing, not JSON, of an unknown schema version, altered, or has an invalid key.
    """
    path = bundle / MANIFEST
    try:
        raw = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise not_a_bundle(bundle) from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: truncated or altered, not valid JSON: {error}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version not in READABLE:
        later = "take the release that wrote it, or " if isinstance(version, int) and version > SCHEMA_VERSION else ""
        known = f"this release reads {READABLE[0]} to {READABLE[-1]}"
        raise BundleError(f"{path}: schema version {version!r}; {known}: {later}export the run again")
    if DIGEST not in raw:
        raise BundleError(f"{path}: altered: it has no {DIGEST}; export the run again")
    if raw.pop(DIGEST) != json_digest(raw):
        raise BundleError(f"{path}: altered: its {DIGEST} is not that of its content")
    try:
        return Manifest.model_validate_json(json.dumps({**raw, "schema_version": SCHEMA_VERSION}))
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
        raise BundleError(f"{path}: " + "; ".join(lines)) from None


def not_a_bundle(path: Path) -> BundleError:
    """The error for a path without a manifest: what it is instead, and what to do."""
    if not path.exists():
        reason = f"no such directory; {EXPORT} makes a bundle"
    elif not path.is_dir():
        reason = f"a file; a bundle is a directory, and {EXPORT} makes one"
    elif (path / DATASET_FILE).is_file():
        train = f"`towers train --dataset {path} --config RECIPE --out RUN`"
        reason = f"it is a data set; {train} and then {EXPORT} make a bundle"
    elif (path / RUN_FILE).is_file():
        reason = f"it is a run; `towers export --run {path} --out BUNDLE` makes a bundle of it"
    elif bundles := sorted(file.parent for file in path.glob(f"*/{MANIFEST}")):
        names = ", ".join(map(str, bundles[:BUNDLES_SHOWN]))
        more = f" and {len(bundles) - BUNDLES_SHOWN} more" if len(bundles) > BUNDLES_SHOWN else ""
        reason = f"it is a directory of bundles; name one: {names}{more}"
    else:
        reason = f"no {MANIFEST} in it, and no bundles; {EXPORT} makes a bundle"
    return BundleError(f"{path}: not a bundle: {reason}")


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Writes the manifest to a file that is not published yet."""
    # Through JSON, so that the digest covers exactly what a reader will find.
    content = json.loads(manifest.model_dump_json())
    text = json.dumps({**content, DIGEST: json_digest(content)}, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def json_digest(content: dict[str, Any]) -> str:
    """SHA-256 of parsed JSON in canonical form: sorted keys, no spaces, ASCII."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
