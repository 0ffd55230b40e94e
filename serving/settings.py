"""All settings of the service, read once at start from arguments, the environment or a TOML file.

The first source with a value wins: arguments of `towers serve`, variables `TOWERS_…`, the file named by `config`.
docs/service/settings.md explains each setting.
"""

import hashlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from serving.files.database_url import DatabaseUrl, state_place

PREFIX = "TOWERS_"
DEFAULT_K = 100
# Settings of earlier versions, and what replaces them.
ENDED = {
    "max_slowdown": "a standing queue may fill only a part of max_concurrent, which bounds the wait",
    "max_connections": "limit_conn and worker_connections of deploy/nginx.conf bound connections",
    "header_timeout_s": "body_timeout_s is for the body, client_header_timeout of deploy/nginx.conf for the head",
}
Url = Annotated[str, Field(pattern=r"^[A-Za-z][\w+.-]*://")]


class Settings(BaseSettings):
    """The service's settings; each has an environment variable, TOWERS_ and its name in upper case.

    Raises:
        ValidationError: a value is invalid, or the file holds an unknown key.
        OSError: the file cannot be read.
        ValueError: the file is not TOML.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    config: Path | None = Field(None, description="a TOML file that holds any of the other settings")
    bundle: Url | Path = Field(
        union_mode="left_to_right",
        description="a bundle, a directory of bundles of which one is active, or the URL of such a directory",
    )
    cache: Path | None = Field(None, description="where copies from a URL are kept; none is below ~/.cache/towers")
    poll_s: float = Field(60.0, ge=0, description="seconds between two looks at the URL; 0 looks only on reload")
    state: Annotated[Path | InstanceOf[DatabaseUrl] | None, BeforeValidator(state_place)] = Field(
        None,
        description="where live changes are kept: a local directory, or postgresql://...; none keeps none",
    )
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 is every one")
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    workers: int = Field(1, ge=1, description="processes; they share the vectors through the page cache")
    verify: bool = Field(True, description="compare every file's SHA-256 when a bundle is opened")
    keys: Path | None = Field(None, description="the file of API keys; without one no key is asked for")
    window: bool = Field(False, description="whether the page /window is there, for people who run the service")

    max_k: int = Field(1_000, ge=1, description="the largest k a request may ask for")
    max_batch: int = Field(256, ge=1, description="the most queries of one batch")
    max_items: int = Field(5_000, ge=1, description="the most items of one PUT /items")
    max_events: int = Field(5_000, ge=1, description="the most events, or impressions, of one POST")
    max_user_events: int = Field(
        1_000, ge=1, description="the newest live events of a user and type that count for recall"
    )
    max_list: int = Field(10_000, ge=1, description="the longest list of a query, also of strings among its features")
    max_answer_values: int = Field(
        100_000, ge=1, description="the most values of an answer: the sum over its queries of k x (1 + attributes)"
    )
    max_conditions: int = Field(
        512, ge=1, description="the most conditions of a batch: the sum over its different filters"
    )
    max_body_bytes: int = Field(1_048_576, ge=1, description="the largest request body")
    max_concurrent: int = Field(128, ge=1, description="requests that a worker processes at a time; others get 429")
    max_heavy: int = Field(8, ge=1, description="of these, those that are not POST /recall")
    max_waiting_bytes: int = Field(
        67_108_864, ge=1, description="bytes of partial bodies and unread answers, per worker"
    )
    max_microbatch: int = Field(64, ge=1, description="the most queries that one call of the tower answers together")

    request_timeout_s: float = Field(30.0, gt=0, description="how long a request may take")
    body_timeout_s: float = Field(10.0, gt=0, description="how long the body may take to arrive after the head")
    keep_alive_s: float = Field(65.0, gt=0, description="how long a connection may be idle between two requests")
    linger_s: float = Field(
        1.0, ge=0, description="how long after SIGTERM requests are still accepted, while /readyz says 503"
    )
    graceful_timeout_s: int = Field(10, ge=0, description="how long a stop waits for open requests")
    http: Literal["httptools", "h11"] = Field("httptools", description="what reads HTTP")

    log_level: Literal["critical", "error", "warning", "info", "debug"] = Field("info", description="of the log")
    log_format: Literal["json", "text"] | None = Field(
        None, description="of the log's lines; none is text on a terminal and json elsewhere"
    )
    access_log: Literal["errors", "all", "none"] = Field("errors", description="which requests get a line in the log")
    slow_ms: float = Field(500.0, gt=0, description="a request that takes longer is logged as slow")
    log_user_ids: bool = Field(False, description="whether the lines of requests name the user")
    index_sample_s: float = Field(
        10.0, ge=0, description="seconds between two searches compared with exact search; 0 compares none"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_as_a_number(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation in (int, float):
            raise ValueError("must be a number")
        return value

    @field_validator("config", "bundle", "cache", "state", "keys", "host", mode="before")
    @classmethod
    def _refuse_empty(cls, value: object) -> object:
        # As a path it would be the working directory, and a deployment's unset variable would keep its state there; as
        # a host it would be every address.
        if isinstance(value, str) and not value.strip():
            raise ValueError("must not be empty")
        return value

    def default_k(self, attributes: int = 0) -> int:
        """The k of a request that names none, but so many attributes of the items."""
        return min(DEFAULT_K, self.max_k, max(1, self.max_answer_values // (1 + attributes)))

    @property
    def store(self) -> str | None:
        """The URL of the store that holds the bundles, or None if they are in a local directory."""
        return self.bundle if isinstance(self.bundle, str) else None

    @property
    def folder(self) -> Path:
        """The local bundle, or directory of bundles; of a store the copies that answer."""
        if isinstance(self.bundle, Path):
            return self.bundle
        if self.cache is not None:
            return self.cache
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return caches / "towers" / hashlib.sha256(self.bundle.encode()).hexdigest()[:16]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the environment, then the file."""
        config = named_file(init_settings())
        if not config:
            return init_settings, env_settings
        # Not the library's own TOML source, which treats a missing file as an empty one.
        return init_settings, env_settings, InitSettingsSource(settings_cls, file_content(Path(config)))


def named_file(given: Mapping[str, Any]) -> Path | str | None:
    """The settings file that the arguments name, else the environment; "" or None for none."""
    return given.get("config") or os.environ.get(f"{PREFIX}CONFIG", "").strip()


def file_content(config: Path) -> dict[str, Any]:
    """The content of a settings file, by key.

    Raises:
        OSError: it cannot be read.
        ValueError: it is a pipe, is not TOML, or names another settings file.
    """
    if config.is_fifo():
        # As of the shell's `<(…)`: the settings are read more than once, the second time from an empty pipe.
        raise ValueError("a pipe, which can be read only once; name a file")
    content = tomllib.loads(config.read_text(encoding="utf-8-sig"))
    if "config" in content:
        raise ValueError("config: a settings file cannot name another one")
    return content
