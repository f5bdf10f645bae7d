"""The platform that commands use: from the environment, the directory, or the hosted default.

URLs are normalised, so that URLs of the same platform are equal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import config_dir, write_json

DEFAULT_PLATFORM_URL = "https://platform.osmosis.ai"
PLATFORM_URL_ENV = "OSMOSIS_PLATFORM_URL"
TOKEN_ENV = "OSMOSIS_TOKEN"
TOKEN_PLATFORM_ENV = "OSMOSIS_TOKEN_PLATFORM_URL"
INFERENCE_URL_ENV = "OSMOSIS_INFERENCE_URL"
ALLOW_INSECURE_ENV = "OSMOSIS_ALLOW_INSECURE_PLATFORM_URL"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOCK_TIMEOUT_S = 10.0
_selected_by_option: str | None = None


def normalize_platform_url(raw: str) -> str:
    from urllib.parse import urlsplit

    text = raw.strip()
    if "://" not in text:
        is_local = is_loopback(_host_of_bare(text))
        if not is_local and re.fullmatch(r"[\w-]*/*", text):
            raise _invalid(raw)  # more likely a wrong argument than a host name
        text = f"{'http' if is_local else 'https'}://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _invalid(raw) from None
    if parts.scheme not in _DEFAULT_PORTS or not host or any(c.isspace() for c in text):
        raise _invalid(raw)
    if port == 0 or not _is_host(host):
        raise _invalid(raw)
    if parts.username is not None or parts.password is not None:
        raise OsmosisError(
            "Platform URL contains a user name or password.", hint="osmosis --platform URL login"
        )
    bracketed = f"[{host}]" if ":" in host else host
    explicit_port = "" if port is None or port == _DEFAULT_PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{bracketed}{explicit_port}{parts.path.rstrip('/')}"


def is_loopback(host: str | None) -> bool:
    """Tell whether ``host`` is this machine, by name or address."""
    if not host:
        return False
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_secure(url: str) -> bool:
    """Tell whether credentials may be sent to the normalised ``url``: it is HTTPS or on this machine."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname)


def ensure_secure(url: str) -> None:
    """Refuse to send credentials unencrypted to the normalised ``url`` unless the user allows it."""
    if not is_secure(url) and os.environ.get(ALLOW_INSECURE_ENV) != "1":
        raise OsmosisError(
            f"Insecure platform URL: {url}.",
            details={"platform_url": url},
            hint=f"use https://, or set {ALLOW_INSECURE_ENV}=1 on a network you trust",
        )


def _is_host(host: str) -> bool:
    """Tell whether ``host`` is an IP address, or a name as in RFC 1123 (underscores allowed) or IDNA."""
    import ipaddress

    if ":" in host or host.rpartition(".")[2].isdigit():
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True
    try:
        name = host.encode("idna").decode("ascii").removesuffix(".")
    except UnicodeError:
        return False
    label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    return len(name) <= 253 and re.fullmatch(rf"{label}(\.{label})*", name) is not None


def _host_of_bare(text: str) -> str:
    authority = text.split("/", 1)[0]
    if authority.startswith("["):
        return authority[1:].split("]", 1)[0]
    return authority if authority.count(":") > 1 else authority.split(":", 1)[0]


def _invalid(raw: str) -> OsmosisError:
    # The text before an `@` may be a password.
    shown = raw.strip().rpartition("@")[2]
    return OsmosisError(f"Invalid platform URL '{shown}'", hint=f"write it as {DEFAULT_PLATFORM_URL}")


@dataclass(frozen=True)
class ActivePlatform:
    """The platform in use, its source, and the directory whose record selected it."""

    url: str
    source: str
    directory: Path | None = None

    def __str__(self) -> str:
        return f"{self.url} ({self.source})"


def active_platform() -> ActivePlatform:
    """Return the platform that commands in the current directory use."""
    value = os.environ.get(PLATFORM_URL_ENV, "").strip()
    if value:
        active = normalize_platform_url(value)
        source = "--platform" if active == _selected_by_option else PLATFORM_URL_ENV
        return ActivePlatform(active, source)
    recorded = _read(_path())
    here = Path.cwd() if recorded else Path("/")
    for place in (here, *here.parents):
        if url := recorded.get(str(place)):
            return ActivePlatform(url, f"set for {place}", place)
    return ActivePlatform(DEFAULT_PLATFORM_URL, "default")


def select_by_option(url: str | None) -> None:
    """Note the platform of the option `--platform`, which is also in the environment, for messages."""
    global _selected_by_option
    _selected_by_option = url


def describe_platform(url: str) -> str:
    """Return ``URL (what chose it)`` for messages about the platform at ``url``; the bare URL if another is active."""
    try:
        active = active_platform()
    except OsmosisError:
        return url
    return str(active) if active.url == url else url


def record_platform(directory: Path, url: str) -> None:
    """Save ``url`` as the platform of commands in ``directory`` and below."""
    with _changing() as recorded:
        recorded[str(directory)] = url


def recorded_directories(platform_url: str | None = None) -> tuple[str, ...]:
    """Return the directories that use a platform, or all directories with a record if it is None."""
    return tuple(place for place, url in _read(_path()).items() if platform_url in (None, url))


def forget_directories(directories: tuple[str, ...]) -> None:
    if directories:
        with _changing() as recorded:
            for place in directories:
                recorded.pop(place, None)


def _path() -> Path:
    return config_dir() / "platforms.json"


@contextmanager
def _changing() -> Iterator[dict[str, str]]:
    from filelock import FileLock, Timeout

    path = _path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(path.with_name(".platforms.lock"), timeout=_LOCK_TIMEOUT_S, mode=0o600):
            recorded = _read(path)
            yield recorded
            write_json(path, recorded)
    except Timeout:
        raise OsmosisError(f"File is locked by another command: {path}.") from None
    except OSError as error:
        raise OsmosisError(f"File cannot be written: {path} ({error.strerror}).") from None


def _read(path: Path) -> dict[str, str]:
    try:
        recorded = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OsmosisError(f"File cannot be read: {path} ({error.strerror}).") from None
    except (ValueError, RecursionError):
        recorded = None
    if not isinstance(recorded, dict) or not all(isinstance(url, str) for url in recorded.values()):
        raise OsmosisError(f"File is damaged: {path}.", hint=f"rm {path}, then log in again")
    return recorded
