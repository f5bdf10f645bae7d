"""Normalise platform URLs, so that URLs of the same platform are equal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from osmosis_ai.errors import OsmosisError

DEFAULT_PLATFORM_URL = "https://platform.osmosis.ai"
PLATFORM_URL_ENV = "OSMOSIS_PLATFORM_URL"
TOKEN_ENV = "OSMOSIS_TOKEN"
TOKEN_PLATFORM_ENV = "OSMOSIS_TOKEN_PLATFORM_URL"
INFERENCE_URL_ENV = "OSMOSIS_INFERENCE_URL"
ALLOW_INSECURE_ENV = "OSMOSIS_ALLOW_INSECURE_PLATFORM_URL"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalize_platform_url(raw: str) -> str:
    """Return the normalised URL of a platform."""
    from urllib.parse import urlsplit

    text = raw.strip()
    if "://" not in text:
        text = f"{'http' if is_loopback(_host_of_bare(text)) else 'https'}://{text}"
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
            "a platform URL must not carry a user name or password.",
            hint="osmosis --platform URL login",
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


def ensure_secure(url: str, env: Mapping[str, str] | None = None) -> None:
    """Refuse to send credentials unencrypted to the normalised ``url`` unless the user allows it."""
    if not is_secure(url) and (os.environ if env is None else env).get(ALLOW_INSECURE_ENV) != "1":
        raise OsmosisError(
            f"refusing to use the insecure platform URL {url}.",
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
