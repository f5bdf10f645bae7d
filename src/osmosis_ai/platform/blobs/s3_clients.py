"""Connections to an S3-compatible store: nothing is asked of it but what every such store does, and none may be silent for long."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.platform.blobs.s3_failures import require_store
from osmosis_ai.platform.s3_address import S3Address

_CONNECT_S = 5
_SILENCE_S, _LONG_SILENCE_S = 10, 60
"""How long the store may say nothing: as a rule, and where it may have to put gigabytes together."""
_CONNECTIONS = 32
# What boto3 calls an instance's metadata and a container's.
_BY_MACHINE = ("iam-role", "container-role")
# Of a role that is taken on with these.
_SOURCES_OF_MACHINE = ("Ec2InstanceMetadata", "EcsContainer")


class S3Clients(NamedTuple):
    """Store connections, connections with longer timeouts, the URL signer, and whether the machine provided the credentials."""

    own: Any
    patient: Any
    public: Any
    by_machine: bool


def connect(address: S3Address, attempts: int) -> S3Clients:
    """Return the connections to a store, each tried so many times at a failure; none is opened yet."""
    import boto3
    from botocore.config import Config
    from botocore.session import get_session

    # At their most talkative these write down what they sign, and what with.
    for name in ("boto3", "botocore", "s3transfer", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    core = get_session()
    session = boto3.session.Session(botocore_session=core)
    region = address.region or session.region_name or "us-east-1"

    def client(endpoint: str, silence_s: int = _SILENCE_S) -> Any:
        from urllib.parse import urlsplit

        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if address.path_style else "virtual"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=_CONNECT_S,
            read_timeout=silence_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=_CONNECTIONS,
            # A variable may not lead elsewhere than the address, which is checked.
            ignore_configured_endpoint_urls=True,
            proxies={} if is_loopback(urlsplit(endpoint).hostname) else None,
        )
        made = session.client("s3", region_name=region, endpoint_url=endpoint or None, config=config)
        made.meta.events.register("after-call.s3", answered)
        return made

    def answered(http_response: Any, parsed: Any, model: Any, **_: Any) -> None:
        require_store(address, model.name, http_response, parsed)

    own = client(address.endpoint)
    patient = client(address.endpoint, _LONG_SILENCE_S)
    public = client(address.public_endpoint) if address.public_endpoint else own
    return S3Clients(own, patient, public, _are_by_machine(core))


def _are_by_machine(session: Any) -> bool:
    """Tell whether credentials are those that every program of this machine is given, or a role that these are good for."""
    credentials = session.get_credentials()
    if credentials is None or credentials.method != "assume-role":
        return credentials is not None and credentials.method in _BY_MACHINE
    profiles = session.full_config.get("profiles", {}).values()
    return any(profile.get("credential_source") in _SOURCES_OF_MACHINE for profile in profiles)
