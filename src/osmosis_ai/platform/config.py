"""Platform configuration: data location and addresses, read once at startup.

Everything a platform owns is below one private directory, so a copy of it is a backup.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from osmosis_ai.api.platform_url import is_loopback, is_secure, normalize_platform_url
from osmosis_ai.controller.remote_agents import NETWORKS_ENV, allowed_networks
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import expanded, is_read_by_all
from osmosis_ai.platform.s3_address import parse_s3_address
from osmosis_ai.sandbox.bubblewrap import Network, network_setting
from osmosis_ai.sandbox.isolation import IsolationSetting, isolation_setting

SettingT = TypeVar("SettingT")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8733
LOCAL_SLOTS = 2
RAY_SLOTS = 100
"""Maximum number of waiting and running jobs of a Ray cluster."""
EXECUTOR_ENV = "OSMOSIS_EXECUTOR"
RAY_ADDRESS_ENV = "OSMOSIS_RAY_ADDRESS"
RAY_TOKEN_FILE_ENV = "OSMOSIS_RAY_TOKEN_FILE"
RAY_ALLOW_OPEN_ENV = "OSMOSIS_RAY_ALLOW_OPEN"
_LONGEST_RAY_TOKEN = 4096
RESTORE_NOTE = "restoring.json"
"""Exists in the data directory while a backup is restored into it."""
_EVERY_INTERFACE = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A Ray cluster whose Jobs API takes runs."""

    address: str
    token_file: Path | None = None
    allow_open: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it is reached on this machine, be it by a tunnel."""
        return is_loopback(urlsplit(self.address).hostname)

    def to_json(self) -> dict[str, Any]:
        """Return it for another process of this machine; the token stays in its file."""
        return {**asdict(self), "token_file": str(self.token_file or "")}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> RayCluster:
        file = written["token_file"]
        return cls(**{**written, "token_file": Path(file) if file else None})

    def token(self) -> str | None:
        """Return the cluster's token, read again each time; None if there is none."""
        if self.token_file is None:
            return None
        try:
            with self.token_file.open("rb") as file:
                token = file.read(_LONGEST_RAY_TOKEN + 1).strip().decode("ascii")
        except OSError as error:
            raise OsmosisError(
                f"the Ray cluster's token cannot be read from {self.token_file}: {error.strerror or error}."
            ) from error
        except UnicodeDecodeError:
            token = ""
        if not token.isprintable() or " " in token or not 0 < len(token) <= _LONGEST_RAY_TOKEN:
            raise OsmosisError(f"{self.token_file} holds no token: it must be one line without spaces.")
        return token


@dataclass(frozen=True)
class PlatformConfig:
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
        return timedelta(seconds=self.lease_s)

    @property
    def run_upload_bytes(self) -> int:
        """Maximum size of all uploads of a run."""
        return self.run_upload_gb * 10**9

    @property
    def base_url(self) -> str:
        """The URL for clients, without a trailing slash."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = DEFAULT_HOST if self.host in _EVERY_INTERFACE else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def blobs_dir(self) -> Path:
        return self.home / "blobs"

    @property
    def executor_shown(self) -> str:
        where = f"the Ray cluster at {self.ray.address}" if self.ray is not None else "this machine"
        return f"{where}, {self.executor_slots} at a time"

    @property
    def blobs_shown(self) -> str:
        return parse_s3_address(self.blobs_url).shown if self.blobs_url else str(self.blobs_dir)

    @property
    def blob_copies_dir(self) -> Path:
        return self.home / "blob-copies"

    @property
    def git_dir(self) -> Path:
        return self.home / "git"

    @property
    def keys_dir(self) -> Path:
        return self.home / "keys"

    @property
    def runs_dir(self) -> Path:
        return self.home / "runs"

    @property
    def restore_note(self) -> Path:
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
    variables = os.environ if env is None else env
    read = _Variables(variables)
    ray = read.setting(ray_cluster, None)
    config = PlatformConfig(
        home=read.home(),
        database_url=read.text("OSMOSIS_DATABASE_URL"),
        metrics_token=read.token("OSMOSIS_METRICS_TOKEN"),
        blobs_url=read.accepted("OSMOSIS_BLOBS_URL", _bucket_url),
        host=read.text("OSMOSIS_PLATFORM_HOST", DEFAULT_HOST),
        port=read.number("OSMOSIS_PLATFORM_PORT", DEFAULT_PORT, 0, 65535),
        public_url=read.accepted("OSMOSIS_PUBLIC_URL", normalize_platform_url),
        trusted_proxies=read.addresses("OSMOSIS_TRUSTED_PROXIES"),
        max_connections=read.number("OSMOSIS_MAX_CONNECTIONS", PlatformConfig.max_connections, 8, 1_000_000),
        executor_slots=read.number("OSMOSIS_EXECUTOR_SLOTS", RAY_SLOTS if ray else LOCAL_SLOTS, 0, 1024),
        ray=ray,
        lease_s=read.number("OSMOSIS_LEASE_SECONDS", PlatformConfig.lease_s, 1, 3600),
        run_upload_gb=read.number("OSMOSIS_RUN_UPLOAD_GB", PlatformConfig.run_upload_gb, 1, 1_000_000),
        minimum_cli_version=read.version("OSMOSIS_MINIMUM_CLI_VERSION", PlatformConfig.minimum_cli_version),
        recommended_cli_version=read.version("OSMOSIS_RECOMMENDED_CLI_VERSION"),
        isolation=read.setting(isolation_setting, "auto"),
        network=read.setting(network_setting, None),
        warnings=tuple(ray_warnings(variables, ray)),
    )
    read.setting(lambda _: allowed_networks(read.text(NETWORKS_ENV)), None)
    if read.problems:
        raise OsmosisError("; ".join(read.problems) + ".", details={"issues": read.problems})
    return config


def ray_cluster(env: Mapping[str, str]) -> RayCluster | None:
    """Return the cluster that executes runs; None if this machine does."""
    executor = env.get(EXECUTOR_ENV, "").strip() or "local"
    if executor == "local":
        return None
    if executor != "ray":
        raise OsmosisError(f"{EXECUTOR_ENV} must be local or ray: '{executor}'.")
    allow_open = env.get(RAY_ALLOW_OPEN_ENV, "").strip() or "0"
    if allow_open not in ("0", "1"):
        raise OsmosisError(f"{RAY_ALLOW_OPEN_ENV} must be 1 or 0: '{allow_open}'.")
    file = env.get(RAY_TOKEN_FILE_ENV, "").strip()
    cluster = RayCluster(
        _ray_address(env.get(RAY_ADDRESS_ENV, "").strip()),
        expanded(file).absolute() if file else None,
        allow_open == "1",
    )
    if cluster.token_file is None and not cluster.allow_open:
        raise OsmosisError(
            f"{RAY_TOKEN_FILE_ENV} must name the file with the Ray cluster's token (on a trusted network, "
            f"{RAY_ALLOW_OPEN_ENV}=1 allows a cluster without a token)."
        )
    return cluster


def ray_warnings(env: Mapping[str, str], cluster: RayCluster | None) -> Iterator[str]:
    """Yield warnings about valid but probably unintended settings."""
    if cluster is None:
        named = [name for name in (RAY_ADDRESS_ENV, RAY_TOKEN_FILE_ENV) if env.get(name, "").strip()]
        if named and not env.get(EXECUTOR_ENV, "").strip():
            are = "are" if len(named) > 1 else "is"
            yield (
                f"{' and '.join(named)} {are} set and {EXECUTOR_ENV} is not: runs execute on this machine "
                f"({EXECUTOR_ENV}=ray executes them on the cluster)."
            )
    elif (file := cluster.token_file) is not None:
        with suppress(OSError):  # an unreadable file is reported where it is needed
            if is_read_by_all(file.stat()):
                yield f"every user of this machine can read {file}, which gives full access to the Ray cluster: chmod 600 {file}"


def require_usable_cluster(cluster: RayCluster, platform_url: str) -> None:
    """Refuse a cluster whose token cannot be read, or whose nodes could not find the platform."""
    cluster.token()
    if is_loopback(urlsplit(platform_url).hostname) and not cluster.is_here:
        raise OsmosisError(
            f"the nodes of the Ray cluster at {cluster.address} cannot reach the platform at {platform_url}.",
            hint="start with --public-url https://NAME, an address that the nodes and clients can reach",
        )


def _ray_address(value: str) -> str:
    example = "such as http://127.0.0.1:8265 or https://ray.example.com"
    if not value:
        raise OsmosisError(
            f"{RAY_ADDRESS_ENV} must be the address of the Ray cluster's dashboard, {example}."
        )
    try:
        address = normalize_platform_url(value)
    except OsmosisError:
        # The value may contain a password.
        raise OsmosisError(f"{RAY_ADDRESS_ENV} is not the address of a Ray dashboard, {example}.") from None
    if not is_secure(address):
        raise OsmosisError(
            f"{RAY_ADDRESS_ENV} uses plain http to another machine, which would send the cluster's token unencrypted: "
            "use an https address, or the local end of a tunnel."
        )
    return address


def data_of_environment(env: Mapping[str, str] | None = None) -> PlatformConfig:
    """Return the data locations of a platform from the environment, for commands that inspect a running one."""
    read = _Variables(os.environ if env is None else env)
    return PlatformConfig(home=read.home(), database_url=read.text("OSMOSIS_DATABASE_URL"))


class _Variables:
    """Parses environment variables; an invalid one is recorded as a problem, and its default is returned."""

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

    def accepted(self, name: str, accept: Callable[[str], str]) -> str:
        value = self.text(name)
        try:
            return accept(value) if value else ""
        except OsmosisError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self.problems.append(f"{name}: {error.message.rstrip('.')}{hint}")
            return ""


def _bucket_url(url: str) -> str:
    parse_s3_address(url)
    return url


def _default_home() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("osmosis"))
