"""Address validation and detection of this machine's public address.

The network is queried only if a server registers without a configured address.
"""

from __future__ import annotations

import ipaddress
import re
from concurrent.futures import ThreadPoolExecutor, as_completed

from .core.exceptions import OsmosisRolloutError

_METADATA = "http://169.254.169.254"
_METADATA_TIMEOUT_S = 2.0
_SERVICE_TIMEOUT_S = 10.0
_SERVICES = (
    "https://checkip.amazonaws.com",
    "https://api.ipify.org",
    "https://icanhazip.com",
    "https://ifconfig.me/ip",
)
_MAX_HOST_CHARACTERS = 253
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


class PublicIPDetectionError(OsmosisRolloutError):
    """This machine's public address could not be determined."""


def validate_ipv4(address: str) -> bool:
    """Return whether a text is an IPv4 address."""
    ip = _parse_ip(address)
    return ip is not None and ip.version == 4


def is_valid_hostname_or_ip(host: str) -> bool:
    """Return whether a text is a host name or IP address, with an optional port."""
    if not host:
        return False
    if _parse_ip(host.strip("[]")) is not None:
        return True
    name, colon, port = host.rpartition(":")
    if colon:
        if not port.isdigit() or not name:
            return False
        host = name
    return _parse_ip(host.strip("[]")) is not None or (
        len(host) <= _MAX_HOST_CHARACTERS and all(_LABEL.fullmatch(label) for label in host.split("."))
    )


def is_private_ip(address: str) -> bool:
    """Return whether an address is private, loopback or link-local."""
    ip = _parse_ip(address)
    return ip is not None and (ip.is_private or ip.is_loopback or ip.is_link_local)


def _parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def detect_public_ip() -> str:
    """Return this machine's public IPv4 address from its cloud's metadata service, or else from a web service."""
    pool = ThreadPoolExecutor(max_workers=3)
    try:
        for reply in as_completed([pool.submit(ask) for ask in (_ask_aws, _ask_gcp, _ask_azure)]):
            if (address := reply.result()) is not None:
                return address
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for url in _SERVICES:
        if (address := _ask(url, timeout_s=_SERVICE_TIMEOUT_S, trust_env=True)) is not None:
            return address
    raise PublicIPDetectionError(
        "the public address of this machine could not be determined", hint="give it with --public-host"
    )


def _ask_aws() -> str | None:
    import httpx

    try:
        token = httpx.put(
            f"{_METADATA}/latest/api/token",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
            timeout=_METADATA_TIMEOUT_S,
            trust_env=False,
        )
    except httpx.HTTPError:
        return None
    headers = {"X-aws-ec2-metadata-token": token.text} if token.status_code == 200 else {}
    return _ask(f"{_METADATA}/latest/meta-data/public-ipv4", headers)


def _ask_gcp() -> str | None:
    path = "/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip"
    return _ask(_METADATA + path, {"Metadata-Flavor": "Google"})


def _ask_azure() -> str | None:
    path = "/metadata/instance/network/interface/0/ipv4/ipAddress/0/publicIpAddress"
    return _ask(f"{_METADATA}{path}?api-version=2021-02-01&format=text", {"Metadata": "true"})


def _ask(
    url: str,
    headers: dict[str, str] | None = None,
    *,
    timeout_s: float = _METADATA_TIMEOUT_S,
    trust_env: bool = False,
) -> str | None:
    """Return the IPv4 address that a service answers with, or None."""
    import httpx

    try:
        reply = httpx.get(url, headers=headers, timeout=timeout_s, trust_env=trust_env)
    except httpx.HTTPError:
        return None
    text = reply.text.strip()
    return text if reply.status_code == 200 and validate_ipv4(text) else None
