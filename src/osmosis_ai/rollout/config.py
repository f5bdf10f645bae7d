"""Settings of agent loops from arguments, the environment, the working directory's ``.env`` or defaults, in this order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from osmosis_ai.errors import OsmosisError

DEFAULT_MAX_METADATA_SIZE_BYTES = 1024 * 1024


class _FromEnvironment(BaseModel):
    """Reads missing fields from ``<env_prefix><FIELD>``."""

    env_prefix: ClassVar[str] = "OSMOSIS_ROLLOUT_"

    @model_validator(mode="before")
    @classmethod
    def _read_environment(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = {f"{cls.env_prefix}{name}".upper(): name for name in cls.model_fields}
        return {fields[key]: value for key, value in _environment().items() if key in fields} | given


class RolloutClientSettings(_FromEnvironment):
    """Controller client settings (``OSMOSIS_ROLLOUT_CLIENT_*``). The delay before a retry doubles each time."""

    env_prefix: ClassVar[str] = "OSMOSIS_ROLLOUT_CLIENT_"

    timeout_seconds: float = Field(default=300.0, ge=1, le=3600)
    max_retries: int = Field(default=3, ge=0, le=10)
    complete_rollout_retries: int = Field(default=2, ge=0, le=10)
    retry_base_delay: float = Field(default=1.0, ge=0.1, le=60)
    retry_max_delay: float = Field(default=30.0, ge=1, le=300)
    max_connections: int = Field(default=100, ge=1, le=1000)
    max_keepalive_connections: int = Field(default=20, ge=1, le=100)


class RolloutServerSettings(_FromEnvironment):
    """Agent server settings (``OSMOSIS_ROLLOUT_SERVER_*``).

    A finished rollout is remembered for ``record_ttl_seconds``, so that its request can be repeated. Requests beyond
    ``max_queued_rollouts`` waiting rollouts get 429 and `Retry-After`.
    """

    env_prefix: ClassVar[str] = "OSMOSIS_ROLLOUT_SERVER_"

    max_concurrent_rollouts: int = Field(default=100, ge=1, le=10_000)
    max_queued_rollouts: int = Field(default=1000, ge=0, le=100_000)
    record_ttl_seconds: float = Field(default=3600.0, ge=60, le=86_400)
    cleanup_interval_seconds: float = Field(default=60.0, ge=10, le=3600)
    request_timeout_seconds: float = Field(default=600.0, ge=10, le=3600)
    registration_readiness_timeout_seconds: float = Field(default=10.0, ge=1, le=60)
    registration_readiness_poll_interval_seconds: float = Field(default=0.2, ge=0.05, le=5)
    registration_shutdown_timeout_seconds: float = Field(default=30.0, ge=1, le=300)


class RolloutSettings(_FromEnvironment):
    """All settings (``OSMOSIS_ROLLOUT_*``). The metadata limit applies to a request's encoded metadata."""

    client: RolloutClientSettings = Field(default_factory=RolloutClientSettings)
    server: RolloutServerSettings = Field(default_factory=RolloutServerSettings)
    max_metadata_size_bytes: int = Field(default=DEFAULT_MAX_METADATA_SIZE_BYTES, ge=1024, le=104_857_600)


_settings: RolloutSettings | None = None


def get_settings() -> RolloutSettings:
    """Return the settings in use, which are read once. Raises OsmosisError for a variable out of range."""
    global _settings
    if _settings is None:
        try:
            _settings = RolloutSettings()
        except ValidationError as error:
            raise _bad_variable(error) from error
    return _settings


def configure(settings: RolloutSettings) -> None:
    """Replace the settings in use."""
    global _settings
    _settings = settings


def reset_settings() -> None:
    """Discard the settings in use. The next :func:`get_settings` reads the environment again."""
    global _settings
    _settings = None


def _environment() -> dict[str, str]:
    """Return all variables with uppercase names. The environment overrides ``.env``."""
    from dotenv import dotenv_values

    path = Path.cwd() / ".env"
    try:
        in_file = dotenv_values(path, verbose=False)
    except (OSError, UnicodeDecodeError) as error:
        hint = "it must be a UTF-8 text file with lines of the form NAME=VALUE"
        raise OsmosisError(f"'{path}' cannot be read: {error}", hint=hint) from None
    variables = [*in_file.items(), *os.environ.items()]
    return {name.upper(): value for name, value in variables if value is not None}


def _bad_variable(error: ValidationError) -> OsmosisError:
    """Return an error that names the invalid variable; ``RolloutSettings()`` has no other source."""
    first = error.errors()[0]
    prefix = _FromEnvironment.env_prefix
    for model in (RolloutClientSettings, RolloutServerSettings):
        prefix = model.env_prefix if model.__name__ == error.title else prefix
    variable = f"{prefix}{first['loc'][-1]}".upper()
    return OsmosisError(
        f"{variable}={first['input']!r} cannot be used: {first['msg'][0].lower()}{first['msg'][1:]}",
        hint="correct it in the environment or in '.env'",
    )
