"""Every setting of the service, read once at the start from the environment (`TOWERS_…`) or given by `towers serve`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """The service's settings; each can be set by the variable TOWERS_ and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="TOWERS_", frozen=True)

    bundle: Path = Field(description="the bundle to answer from, or a directory of bundles of which one is active")
    state: Path | None = Field(None, description="where live changes are kept, on a local disk; None keeps none")
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    workers: int = Field(1, ge=1, description="processes; they share the vectors through the page cache")
    verify: bool = Field(True, description="compare every file's SHA-256 at the start")
    max_k: int = Field(1_000, ge=1, description="the largest k a request may ask for")
    max_batch: int = Field(256, ge=1, description="the most queries of one batch")
    max_items: int = Field(5_000, ge=1, description="the most items of one PUT /items")
    max_body_bytes: int = Field(1_048_576, ge=1, description="the largest request body")
    graceful_timeout_s: int = Field(10, ge=0, description="how long a stop waits for open requests")
    log_level: str = Field("info", pattern="^(critical|error|warning|info|debug)$", description="of the server's log")
