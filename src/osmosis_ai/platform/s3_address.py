"""Parse and validate bucket addresses: ``s3://BUCKET/PREFIX?endpoint=…&region=…&path_style=…&public_endpoint=…``.

An address must not contain credentials. An invalid address is never repeated, since it may contain one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.errors import OsmosisError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_MAX_PREFIX_CHARS = 200
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_SETTINGS = ("endpoint", "region", "path_style", "public_endpoint")
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class S3Address:
    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    path_style: bool = False
    public_endpoint: str = ""

    @property
    def shown(self) -> str:
        return f"the bucket '{self.bucket}' at {self.endpoint or 'Amazon S3'}"

    def key_of(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key


def parse_s3_address(url: str) -> S3Address:
    try:
        parts = urlsplit(url)
        settings = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _invalid("it is not a URL") from None
    if parts.scheme != "s3":
        raise _invalid("it does not begin with s3://")
    if "@" in parts.netloc:
        raise OsmosisError(
            "the address of a bucket must not contain credentials.",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or configure a profile or a role",
        )
    if not parts.netloc or parts.fragment:
        raise _invalid("it has no bucket name")
    if not _BUCKET.fullmatch(parts.netloc):
        raise _invalid("a bucket name must have 3 to 63 lowercase letters, digits, '-' and '.'")
    prefix = parts.path.strip("/")
    if len(prefix) > _MAX_PREFIX_CHARS or (prefix and not _PREFIX.fullmatch(prefix)):
        raise _invalid("its path may contain only letters, digits, '.', '_' and '-' between slashes")
    found = dict(settings)
    if len(found) < len(settings):
        raise _invalid("it has a duplicate setting")
    if unknown := sorted(found.keys() - set(_SETTINGS)):
        # A name that is no word may be half a secret.
        named = ", ".join(name if name.isidentifier() and len(name) < 20 else "…" for name in unknown)
        raise _invalid(f"unknown setting {named} (expected {', '.join(_SETTINGS)})")
    endpoint = _endpoint("endpoint", found.get("endpoint", ""))
    region = found.get("region", "")
    if region and not _REGION.fullmatch(region):
        raise _invalid("its region is invalid")
    style = found.get("path_style", "1" if endpoint else "0").lower()
    if style not in _BOOLEANS:
        raise _invalid("path_style must be 1 or 0")
    public = _endpoint("public_endpoint", found.get("public_endpoint", ""))
    return S3Address(parts.netloc, prefix, endpoint, region, _BOOLEANS[style], public)


def _endpoint(name: str, url: str) -> str:
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise _invalid(f"its {name} is not an address such as https://s3.example.com")
    if "@" in parts.netloc or parts.path.strip("/") or re.search(r"[\s\x00-\x1f]", url):
        raise _invalid(f"its {name} must consist of scheme, host and port")
    if parts.scheme != "https" and not is_loopback(host):
        raise OsmosisError(
            f"the {name} {host} uses plain http to another machine, which would send data unencrypted.",
            hint="use the store's https address",
        )
    return f"{parts.scheme}://{parts.netloc}"


def _invalid(problem: str) -> OsmosisError:
    example = "s3://my-bucket/osmosis?endpoint=https://s3.example.com&region=eu-central-1"
    return OsmosisError(f"invalid bucket address: {problem}.", hint=f"use an address such as {example}")
