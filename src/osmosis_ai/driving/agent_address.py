"""Where a served agent listens, and the addresses that nothing here ever connects to.

Who registers an agent names a host that this process then speaks to, with a key. The metadata services of clouds and
everything else that is only reachable from this very link answer such a host with credentials or with nothing good, so
no name may lead there: what a name resolves to is looked at when the connection is made, not before.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.transport import is_loopback, open_session

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

NETWORKS_ENV = "OSMOSIS_AGENT_NETWORKS"
"""Names the networks that served agents may be in; anywhere, but for what is always refused, where it is not set."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# `2852039166`, `0xa9fea9fe` and `169.254.43518` are addresses to those who resolve them; no name ends in a number.
_SPELT_ADDRESS = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)")
# IPv6 addresses that lead to the IPv4 address in their last 32 bits.
_LEADS_TO_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
# What clouds answer with credentials on, beyond the link-local addresses that most of them use.
_METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "fd00:ec2::254")))


class AgentAddressError(OsmosisError):
    """An address that is none, or that nothing here connects to."""


@dataclass(frozen=True)
class AgentAddress:
    """A host and a port; nothing was resolved."""

    host: str
    port: int

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise AgentAddressError(f"{self.port} is no port: it must be from 1 to 65535.")
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            is_name = _NAME.fullmatch(self.host) and not _SPELT_ADDRESS.fullmatch(self.host)
            if len(self.host) > 253 or not is_name:
                raise AgentAddressError(
                    f"{self.host[:253]!r} is neither a host name nor an IP address."
                ) from None
        else:
            require_allowed(str(address))

    @classmethod
    def parse(cls, text: str) -> AgentAddress:
        """Read ``HOST:PORT``; an IPv6 address stands in brackets."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or len(port) > 5:
            raise AgentAddressError(f"'{text[:300]}' is not HOST:PORT, such as 127.0.0.1:9000.")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def base_url(self) -> str:
        """Where it serves, without a trailing slash."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether it names this very machine, whose loopback is then the agent's, too; blocks while a name is looked up."""
        if is_loopback(self.host):
            return True
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            socket.create_server((self.host, 0), family=family).close()
        except (OSError, UnicodeError):
            return False
        return True

    def __str__(self) -> str:
        return self.base_url.removeprefix("http://")


def allowed_networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Read the operator's networks, with commas between them."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError:
            raise OsmosisError(
                f"{NETWORKS_ENV} must name addresses or networks such as 10.0.0.0/24, and has '{part}'."
            ) from None
    return tuple(found)


def require_allowed(address: str) -> None:
    """Let an IP address through that something may be served on."""
    found = _reached(ipaddress.ip_address(address.partition("%")[0]))
    is_nobody = found.is_multicast or found.is_unspecified or (found.version == 4 and found.is_reserved)
    if found.is_link_local or is_nobody or found in _METADATA:
        raise AgentAddressError(
            f"{address} is refused: no agent is served on link-local, multicast or unspecified addresses, "
            "nor on those of a cloud's metadata service."
        )
    networks = allowed_networks(os.environ.get(NETWORKS_ENV, ""))
    if networks and not any(found in network for network in networks):
        raise AgentAddressError(f"{address} is refused: it is in none of the networks of {NETWORKS_ENV}.")


def _reached(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for; other addresses as they are."""
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback or address.is_unspecified:
        return address
    if any(address in network for network in _LEADS_TO_IPV4):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    client = address.teredo[1] if address.teredo is not None else None
    return address.ipv4_mapped or address.sixtofour or client or address


def open_agent_session(*, timeout_s: float) -> aiohttp.ClientSession:
    """Open a session to served agents; it takes no proxy, and resolves no name to a refused address."""
    return open_session(timeout_s=timeout_s, resolver=_checked_resolver())


def _checked_resolver() -> AbstractResolver:
    from aiohttp.abc import AbstractResolver, ResolveResult
    from aiohttp.resolver import ThreadedResolver

    class CheckedResolver(AbstractResolver):
        def __init__(self) -> None:
            self._resolver = ThreadedResolver()

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            found: list[Any] = await self._resolver.resolve(host, port, family)
            for entry in found:
                try:
                    require_allowed(entry["host"])
                except AgentAddressError as error:
                    raise OSError(error.message) from None
            return found

        async def close(self) -> None:
            await self._resolver.close()

    return CheckedResolver()
