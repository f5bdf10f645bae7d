"""Platform configuration: data location and addresses, read once at startup.

Everything a platform owns is below one private directory, so a copy of it is a backup.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from osmosis_ai.controller.remote_agents import NETWORKS_ENV, allowed_networks
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.platform.ray_cluster import RayCluster, ray_cluster, ray_warnings
from osmosis_ai.platform.s3_address import parse_s3_address
from osmosis_ai.sandbox.isolation import IsolationSetting, isolation_setting
from osmosis_ai.sandbox.network import Network, network_setting

SettingT = TypeVar("SettingT")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8733
LOCAL_SLOTS = 2
RAY_SLOTS = 100
"""Jobs that may wait in a cluster or run there: it has room for them or not."""
RESTORE_NOTE = "restoring.json"
"""A file that is in the data directory while a backup is restored into it."""
_EVERY_INTERFACE = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class PlatformConfig:
    """The settings of one platform."""

    home: Path
    database_url: str = ""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    public_url: str = ""
    trusted_proxies: tuple[str, ...] = ()
    max_connections: int = 4096
    executor_slots: int = LOCAL_SLOTS
    ray: RayCluster | None = None
    minimum_cli_version: str = "0.2.14"
    recommended_cli_version: str = ""
    isolation: IsolationSetting = "auto"
    network: Network | None = None
    blobs_url: str = ""
    executes_nothing: str | None = None
    lease_s: int = 30
    run_upload_gb: int = 1000
    metrics_token: str = field(default="", repr=False)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.database_url:
            object.__setattr__(self, "database_url", f"sqlite:///{self.home / 'platform.db'}")

    @property
    def lease_term(self) -> timedelta:
        """How long a lease lasts from each renewal on."""
        return timedelta(seconds=self.lease_s)

    @property
    def run_upload_bytes(self) -> int:
        """How much the workers of a run may send in all."""
        return self.run_upload_gb * 10**9

    @property
    def base_url(self) -> str:
        """How clients reach the platform, without a trailing slash."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = DEFAULT_HOST if self.host in _EVERY_INTERFACE else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def blobs_dir(self) -> Path:
        """Where the local blob store keeps its files."""
        return self.home / "blobs"

    @property
    def executor_shown(self) -> str:
        """The executor's name for display."""
        where = f"the Ray cluster at {self.ray.address}" if self.ray is not None else "this machine"
        return f"{where}, {self.executor_slots} at a time"

    @property
    def blobs_shown(self) -> str:
        """The blob store's location for display."""
        return parse_s3_address(self.blobs_url).shown if self.blobs_url else str(self.blobs_dir)

    @property
    def blob_copies_dir(self) -> Path:
        """Where copies of blobs lie that are in a bucket."""
        return self.home / "blob-copies"

    @property
    def git_dir(self) -> Path:
        """Where the mirrors of connected repositories lie."""
        return self.home / "git"

    @property
    def keys_dir(self) -> Path:
        """Where encryption and signing keys lie."""
        return self.home / "keys"

    @property
    def runs_dir(self) -> Path:
        """Where runs keep their working files."""
        return self.home / "runs"

    @property
    def restore_note(self) -> Path:
        """The note of a restore that is not finished."""
        return self.home / RESTORE_NOTE

    def require_restored(self) -> None:
        """Refuse a data directory that a backup was not completely restored into."""
        if self.restore_note.exists():
            raise ConflictError(
                f"the restore into {self.home} is not finished.",
                hint="run the same `osmosis platform restore` again",
            )

    def prepare_home(self) -> None:
        """Create the data directory, readable by its owner alone."""
        self.require_restored()
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.home.chmod(0o700)
        except OSError as error:
            raise OsmosisError(
                f"the platform's data directory {self.home} cannot be used: {error.strerror or error}.",
                hint="set OSMOSIS_HOME to a directory of your own",
            ) from error


def from_environment(env: Mapping[str, str] | None = None) -> PlatformConfig:
    """Return the configuration that the environment describes."""
    read = _Variables(os.environ if env is None else env)
    ray = read.setting(ray_cluster, None)
    config = PlatformConfig(
        home=read.home(),
        database_url=read.text("OSMOSIS_DATABASE_URL"),
        metrics_token=read.token("OSMOSIS_METRICS_TOKEN"),
        blobs_url=read.bucket("OSMOSIS_BLOBS_URL"),
        host=read.text("OSMOSIS_PLATFORM_HOST", DEFAULT_HOST),
        port=read.number("OSMOSIS_PLATFORM_PORT", DEFAULT_PORT, 0, 65535),
        public_url=read.url("OSMOSIS_PUBLIC_URL"),
        trusted_proxies=read.addresses("OSMOSIS_TRUSTED_PROXIES"),
        max_connections=read.number("OSMOSIS_MAX_CONNECTIONS", 4096, 8, 1_000_000),
        executor_slots=read.number("OSMOSIS_EXECUTOR_SLOTS", RAY_SLOTS if ray else LOCAL_SLOTS, 0, 1024),
        ray=ray,
        lease_s=read.number("OSMOSIS_LEASE_SECONDS", 30, 1, 3600),
        run_upload_gb=read.number("OSMOSIS_RUN_UPLOAD_GB", 1000, 1, 1_000_000),
        minimum_cli_version=read.version("OSMOSIS_MINIMUM_CLI_VERSION", "0.2.14"),
        recommended_cli_version=read.version("OSMOSIS_RECOMMENDED_CLI_VERSION"),
        isolation=read.setting(isolation_setting, "auto"),
        network=read.setting(network_setting, None),
        warnings=tuple(ray_warnings(os.environ if env is None else env, ray)),
    )
    if problems := read.problems + _network_problems(read.text(NETWORKS_ENV)):
        raise OsmosisError("; ".join(problems) + ".", details={"issues": problems})
    return config


def data_of_environment(env: Mapping[str, str] | None = None) -> PlatformConfig:
    """Return the data locations of a platform from the environment, for commands that inspect a running one."""
    read = _Variables(os.environ if env is None else env)
    return PlatformConfig(home=read.home(), database_url=read.text("OSMOSIS_DATABASE_URL"))


class _Variables:
    """Variables of an environment as values; what is none is a problem, and its default is returned."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.problems: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        return self._variables.get(name, "").strip() or default

    def home(self) -> Path:
        return expanded(self.text("OSMOSIS_HOME") or _default_home()).absolute()

    def number(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name, str(default))
        if value.isascii() and value.isdigit() and low <= int(value) <= high:
            return int(value)
        self.problems.append(f"{name} must be a whole number from {low} to {high}, and is '{value}'")
        return default

    def version(self, name: str, default: str = "") -> str:
        from packaging.version import InvalidVersion, Version

        value = self.text(name, default)
        try:
            return str(Version(value)) if value else ""
        except InvalidVersion:
            self.problems.append(f"{name} must be a version such as 0.3.0, and is '{value}'")
            return default

    def url(self, name: str) -> str:
        from osmosis_ai.api.platform_url import normalize_platform_url

        return self._accepted(name, normalize_platform_url)

    def bucket(self, name: str) -> str:
        def checked(url: str) -> str:
            parse_s3_address(url)
            return url

        return self._accepted(name, checked)

    def token(self, name: str) -> str:
        value = self.text(name)
        if value and not re.fullmatch(r"[!-~]{16,256}", value):
            self.problems.append(f"{name} must be 16 to 256 letters, digits and signs without a space")
            return ""
        return value

    def addresses(self, name: str) -> tuple[str, ...]:
        found = tuple(filter(None, (part.strip() for part in self.text(name).split(","))))
        for address in found:
            try:
                ipaddress.ip_network(address)
            except ValueError:
                self.problems.append(
                    f"{name} must name addresses or networks such as 127.0.0.1 or 10.0.0.0/24, and has '{address}'"
                )
        return found

    def setting(self, read: Callable[[Mapping[str, str]], SettingT], otherwise: SettingT) -> SettingT:
        try:
            return read(self._variables)
        except OsmosisError as error:
            self.problems.append(error.message.rstrip("."))
            return otherwise

    def _accepted(self, name: str, accept: Callable[[str], str]) -> str:
        value = self.text(name)
        try:
            return accept(value) if value else ""
        except OsmosisError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self.problems.append(f"{name}: {error.message.rstrip('.')}{hint}")
            return ""


def _network_problems(networks: str) -> list[str]:
    try:
        allowed_networks(networks)
    except OsmosisError as error:
        return [error.message.rstrip(".")]
    return []


def _default_home() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("osmosis"))
