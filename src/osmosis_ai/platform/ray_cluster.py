"""Which Ray cluster executes runs, as ``OSMOSIS_EXECUTOR=ray`` and its companions say: checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.api.platform_url import is_loopback, is_secure, normalize_platform_url
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded, is_read_by_all

EXECUTOR_ENV = "OSMOSIS_EXECUTOR"
ADDRESS_ENV = "OSMOSIS_RAY_ADDRESS"
TOKEN_FILE_ENV = "OSMOSIS_RAY_TOKEN_FILE"
ALLOW_OPEN_ENV = "OSMOSIS_RAY_ALLOW_OPEN"
_EXECUTORS = ("local", "ray")
_LONGEST_TOKEN = 4096


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
        """Return it as another process of this machine reads it; the token stays in its file."""
        file = str(self.token_file) if self.token_file is not None else None
        return {"address": self.address, "token_file": file, "allow_open": self.allow_open}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> RayCluster:
        """Return what :meth:`to_json` has written."""
        file = written["token_file"]
        return cls(written["address"], Path(file) if file else None, written["allow_open"])

    def token(self) -> str | None:
        """Return the cluster's token, read again each time; None if there is none."""
        if self.token_file is None:
            return None
        try:
            with self.token_file.open("rb") as file:
                token = file.read(_LONGEST_TOKEN + 1).strip().decode("ascii")
        except OSError as error:
            raise OsmosisError(
                f"the Ray cluster's token cannot be read from {self.token_file}: {error.strerror or error}."
            ) from error
        except UnicodeDecodeError:
            token = ""
        if not token.isprintable() or " " in token or not 0 < len(token) <= _LONGEST_TOKEN:
            raise OsmosisError(f"{self.token_file} holds no token: it must be one line without spaces.")
        return token


def ray_cluster(env: Mapping[str, str]) -> RayCluster | None:
    """Return the cluster that executes runs; None where this machine does."""
    executor = env.get(EXECUTOR_ENV, "").strip() or "local"
    if executor not in _EXECUTORS:
        raise OsmosisError(f"{EXECUTOR_ENV} must be local or ray, and is '{executor}'.")
    if executor == "local":
        return None
    allow_open = env.get(ALLOW_OPEN_ENV, "").strip() or "0"
    if allow_open not in ("0", "1"):
        raise OsmosisError(f"{ALLOW_OPEN_ENV} must be 1 or 0, and is '{allow_open}'.")
    file = env.get(TOKEN_FILE_ENV, "").strip()
    cluster = RayCluster(
        _address(env.get(ADDRESS_ENV, "").strip()),
        expanded(file).absolute() if file else None,
        allow_open == "1",
    )
    if cluster.token_file is None and not cluster.allow_open:
        raise OsmosisError(
            f"{TOKEN_FILE_ENV} must name the file with the Ray cluster's token (on a network you trust, "
            f"{ALLOW_OPEN_ENV}=1 takes a cluster without one)."
        )
    return cluster


def ray_warnings(env: Mapping[str, str], cluster: RayCluster | None) -> Iterator[str]:
    """Yield warnings about valid but probably unintended settings."""
    if cluster is None:
        named = [name for name in (ADDRESS_ENV, TOKEN_FILE_ENV) if env.get(name, "").strip()]
        if named and not env.get(EXECUTOR_ENV, "").strip():
            are = "are" if len(named) > 1 else "is"
            yield (
                f"{' and '.join(named)} {are} set and {EXECUTOR_ENV} is not: runs execute on this machine "
                f"({EXECUTOR_ENV}=ray gives them to the cluster)."
            )
    elif (file := cluster.token_file) is not None:
        with suppress(OSError):  # an unreadable file is reported where it is needed
            if is_read_by_all(file.stat()):
                yield f"every user of this machine can read {file}, and the Ray cluster is theirs with it: chmod 600 {file}"


def require_usable_cluster(cluster: RayCluster, platform_url: str) -> None:
    """Refuse a cluster whose token cannot be read, or whose nodes could not find the platform."""
    cluster.token()
    if is_loopback(urlsplit(platform_url).hostname) and not cluster.is_here:
        raise OsmosisError(
            f"the nodes of the Ray cluster at {cluster.address} cannot reach the platform at {platform_url}.",
            hint="start with --public-url https://NAME, the address that they and clients reach it at",
        )


def _address(value: str) -> str:
    example = "such as http://127.0.0.1:8265 or https://ray.example.com"
    if not value:
        raise OsmosisError(f"{ADDRESS_ENV} must say where the Ray cluster's dashboard is, {example}.")
    try:
        address = normalize_platform_url(value)
    except OsmosisError:
        # What is wrong may hold a password.
        raise OsmosisError(f"{ADDRESS_ENV} is not the address of a Ray dashboard, {example}.") from None
    if not is_secure(address):
        raise OsmosisError(
            f"{ADDRESS_ENV} is plain http beyond this machine, and the cluster's token does not travel in the clear: "
            "give an https address, or the near end of a tunnel."
        )
    return address
