"""Agents that someone else serves: where they are, whether they are alive, and how rollouts run on them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import math
import os
import re
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import BaseModel, FailFast, Field, ValidationError

from osmosis_ai.controller.callbacks import (
    DEFAULT_DEADLINE_S,
    CallbackAddress,
    CallbackRolloutDriver,
    RolloutProtocolError,
    RolloutRunRequest,
    UnknownRolloutIdError,
    admission_pause_s,
    encode_request,
    refuse_admission,
    total_timeout,
)
from osmosis_ai.controller.model_proxy import RefusedCallError, refusal
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.llm.transport import connection_failure, is_loopback, open_session
from osmosis_ai.llm.wire_json import loads
from osmosis_ai.rollout.loop.outcome import CANCELLED, LoopOutcome
from osmosis_ai.rollout.types import (
    ExecutionResult,
    GraderCompleteRequest,
    GraderStatus,
    RolloutCompleteRequest,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

    from osmosis_ai.controller.callbacks import CallbackStore, RolloutRunRequest, TerminalCallbackResult
    from osmosis_ai.controller.model_proxy import RolloutBridge


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


PROBE_TIMEOUT_S = 5.0
MAX_REPLY_BYTES = 1024 * 1024
POLL_S = 2.0
_QUICK_POLL_S = 0.2
_MISSES = 3
RETURN_LIMIT_S = 120.0
MAX_DEATHS = 5
_HEALTH_TEXTS = ("status", "agent_loop")
_HEALTH_COUNTS = ("active_rollouts", "completed_rollouts")


class ServedAgentError(OsmosisError):
    """A served agent cannot be used, or is gone."""

    default_code = "NETWORK"
    is_infrastructure = True


@dataclass(frozen=True)
class AgentLocation:
    """Where a served agent is, and the key that it asks for; None for one that asks for none."""

    address: AgentAddress
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """What every request to it carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True)
class AgentHealth:
    """What a served agent said of itself, or why it said nothing of use; one of both."""

    info: dict[str, Any] | None = None
    error: str | None = None


async def probe_agent(http: aiohttp.ClientSession, location: AgentLocation) -> AgentHealth:
    """Ask a served agent how it does; redirects are not followed, and time and size of the reply are bounded."""
    status, health = await _ask(http, location, "/platform/health")
    if status == 404 and location.api_key is None:
        # It asks nobody for a key, and tells everybody.
        _, health = await _ask(http, location, "/health")
    return health


async def _ask(
    http: aiohttp.ClientSession, location: AgentLocation, path: str
) -> tuple[int | None, AgentHealth]:
    """Return the status of the answer, None where there was none, and what it says."""
    import aiohttp

    try:
        async with http.get(
            location.address.base_url + path,
            headers=location.headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S),
        ) as reply:
            body = await read_bounded(reply)
            if reply.status != 200:
                return reply.status, AgentHealth(error=_refusal(reply.status, path, location))
            return reply.status, _read(body)
    except asyncio.TimeoutError:
        return None, AgentHealth(error=f"it did not answer `GET {path}` within {PROBE_TIMEOUT_S:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return None, AgentHealth(error=connection_failure(error))


async def read_bounded(reply: aiohttp.ClientResponse) -> bytes:
    """Return a reply's bytes."""
    pieces, size = [], 0
    async for piece in reply.content.iter_any():
        size += len(piece)
        if size > MAX_REPLY_BYTES:
            raise ValueError(f"its reply is larger than {MAX_REPLY_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


class ServedAgent:
    """A served agent, as :class:`~osmosis_ai.controller.server_process.RestartingRolloutServer` keeps a
    server."""

    capacity: int | None = None

    def __init__(
        self,
        locate: Callable[[], AgentLocation],
        *,
        name: str,
        callback_address: CallbackAddress | None = None,
        artifact_root: Path | None = None,
        hint: str = "start it with `osmosis serve`, then try again",
        poll_s: float = POLL_S,
        return_limit_s: float = RETURN_LIMIT_S,
    ) -> None:
        self.name = name
        self.callback_address = callback_address or CallbackAddress()
        self.artifact_root = artifact_root
        self._hint = hint
        self.admitted: set[str] = set()
        self._locate = locate
        self._poll_s = poll_s
        self._return_limit_s = return_limit_s
        self._location: AgentLocation | None = None
        self._http: aiohttp.ClientSession | None = None
        self._suspected = asyncio.Event()
        self._deaths = 0
        self._last: str = ""

    @property
    def location(self) -> AgentLocation:
        """Where it was last found."""
        if self._location is None:
            raise RuntimeError(f"{self.name} was not looked for yet")
        return self._location

    @property
    def base_url(self) -> str:
        """Where it serves."""
        return self.location.address.base_url

    async def start(self) -> None:
        """Find it, and make sure that it answers."""
        self._http = open_agent_session(timeout_s=PROBE_TIMEOUT_S)
        try:
            health = await self._look()
            if health.error is not None:
                raise ServedAgentError(f"{self.name} cannot be used: {health.error}.", hint=self._hint)
            if not await self._can_call_back():
                raise ServedAgentError(
                    f"{self.name} is on another machine, and would look for the model on its own loopback.",
                    hint="set OSMOSIS_BRIDGE_HOST to the name or address that this machine has there",
                    code="VALIDATION",
                )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ask it no more; the agent itself goes on."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def made_progress(self) -> None:
        """Note that it brought a rollout to its end."""
        self._deaths = 0

    def suspect(self) -> None:
        """Look at it now: somebody could not reach it."""
        self._suspected.set()

    async def death(self) -> OsmosisError:
        """Wait until it is gone, and say why it is thought to be."""
        misses = forgotten = 0
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                pause_s = _QUICK_POLL_S if misses else self._poll_s
                await asyncio.wait_for(self._suspected.wait(), pause_s)
            self._suspected.clear()
            known = set(self.admitted)
            health = await self._probe()
            misses = misses + 1 if health.error is not None else 0
            forgotten = forgotten + 1 if _has_forgotten(health, known & self.admitted) else 0
            if misses >= _MISSES or forgotten >= _MISSES:
                self._last = health.error or "it does not know its rollouts any more: it was started again"
                return ServedAgentError(f"{self.name} is gone: {self._last}.")

    async def revive(self, note: Callable[[str], None]) -> bool:
        """Wait until it is back."""
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise self._given_up(f"went away {self._deaths} times without finishing a rollout in between")
        note(f"{self.name} is gone: {self._last}. Waiting for it, {self._return_limit_s:g} s at most.")
        deadline = time.monotonic() + self._return_limit_s
        while (health := await self._look()).error is not None:
            if time.monotonic() >= deadline:
                raise self._given_up(f"did not come back within {self._return_limit_s:g} s: {health.error}")
            await asyncio.sleep(min(1.0, self._poll_s))
        return True

    async def _can_call_back(self) -> bool:
        if not is_loopback(self.callback_address.host):
            return True
        address = self.location.address
        return await asyncio.to_thread(lambda: address.is_here)

    async def _look(self) -> AgentHealth:
        """Find it anew, and ask it."""
        try:
            self._location = await asyncio.to_thread(self._locate)
        except AgentAddressError as error:
            return AgentHealth(error=error.message.rstrip("."))
        return await self._probe()

    async def _probe(self) -> AgentHealth:
        if self._http is None:
            return AgentHealth(error="nobody asks it any more")
        return await probe_agent(self._http, self.location)

    def _given_up(self, said: str) -> ServedAgentError:
        return ServedAgentError(
            f"{self.name} {said}.", hint="start it again, then start the run again: what is finished is kept"
        )


def _has_forgotten(health: AgentHealth, under_way: set[str]) -> bool:
    """Whether it runs fewer rollouts than it has accepted, all of which were under way when it was asked."""
    active = (health.info or {}).get("active_rollouts")
    return active is not None and active < len(under_way)


def _refusal(status: int, path: str, location: AgentLocation) -> str:
    if status == 401:
        return (
            f"it {'refuses the key' if location.api_key else 'asks for a key, and there is none'} (HTTP 401)"
        )
    if 300 <= status < 400:
        return f"it answers `GET {path}` with a redirect (HTTP {status}), which is not followed"
    if status == 404 and path != "/health":
        return f"it has no `{path}` (HTTP 404): it is no served agent, or was started without a key"
    return f"it answers `GET {path}` with HTTP {status}"


def _read(body: bytes) -> AgentHealth:
    try:
        told = orjson.loads(body)
    except ValueError:
        told = None
    if not isinstance(told, dict) or told.get("status") != "healthy":
        return AgentHealth(error="its answer is not that of a served agent in good health")
    info: dict[str, Any] = {name: told[name][:256] for name in _HEALTH_TEXTS if type(told.get(name)) is str}
    info |= {name: told[name] for name in _HEALTH_COUNTS if type(told.get(name)) is int and told[name] >= 0}
    return AgentHealth(info)


def not_registered(name: str) -> NotFoundError:
    """Return the error of a name that no agent has."""
    return NotFoundError(
        f"no served agent '{name[:255]}' is registered in this workspace.",
        hint="`osmosis serve` registers the agent that it serves; `osmosis rollout server list` shows all",
    )


logger = logging.getLogger(__name__)

MAX_COMPLETION_BYTES = 64 * 1024 * 1024
TOOLS_TIMEOUT_S = 60.0
REMEMBERED_KEYS = 16_384
NO_REWARD = "the served agent reported no reward, and nothing else grades its rollouts: give `RolloutResult` a `reward`"
# What clients of the agent-loop line write into every call, whether or not the agent asked for it.
_UNASKED: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "logprobs": True}
_MAX_ERROR_CHARS = 10_000


class _Completion(BaseModel):
    """The body of `/v1/rollout/completed`, as far as it is read."""

    rollout_id: str
    status: Literal["COMPLETED", "ERROR"]
    # One wrong message says enough: a body may hold millions, and each would become a problem of its own.
    final_messages: Annotated[list[dict[str, Any]], FailFast()] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: dict[str, Any] | None = None
    extra_fields: dict[str, Any] | None = None


@dataclass(eq=False)
class _OpenRollout:
    """A rollout that a served agent works on."""

    request: RolloutRunRequest
    tools: asyncio.Future[list[dict[str, Any]]]
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    completing: asyncio.Lock = field(default_factory=asyncio.Lock)
    completed: bool = False

    @property
    def rollout_id(self) -> str:
        return self.request.rollout_id


class LoopEndpoints:
    """Serves the two paths of the agent-loop line, for as many rollouts as are open."""

    def __init__(
        self, store: CallbackStore, bridge: RolloutBridge[Any], *, artifact_root: Path | None = None
    ) -> None:
        self._store = store
        self._bridge = bridge
        self._artifact_root = artifact_root
        self._open: dict[bytes, _OpenRollout] = {}
        self._keys: dict[str, bytes] = {}
        self._ended: OrderedDict[bytes, str] = OrderedDict()

    def open(self, request: RolloutRunRequest) -> str:
        """Expect the calls of a rollout, and return the key that they must show."""
        rollout_id = request.rollout_id
        if rollout_id in self._keys:
            raise ValueError(f"rollout {rollout_id!r} is open already")
        key = secrets.token_urlsafe(32)
        digest = self._keys[rollout_id] = _digest(key)
        tools: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._open[digest] = _OpenRollout(request, tools)
        return key

    def offer_tools(self, rollout_id: str, tools: Iterable[Mapping[str, Any]]) -> None:
        """Give the model these tools in every call of a rollout that names none; calls wait until they are known."""
        opened = self._open.get(self._keys.get(rollout_id, b""))
        if opened is not None and not opened.tools.done():
            opened.tools.set_result([_without_nulls(tool) for tool in tools])

    async def wait_cancelled(self, rollout_id: str) -> None:
        """Wait until the agent says that it gave up a rollout because it was told to end."""
        await self._open[self._keys[rollout_id]].cancelled.wait()

    def close(self, rollout_id: str) -> None:
        """Expect nothing of a rollout any more; harmless when it is not open."""
        digest = self._keys.pop(rollout_id, None)
        if digest is None:
            return
        self._open.pop(digest).tools.cancel()
        self._ended[digest] = rollout_id
        while len(self._ended) > REMEMBERED_KEYS:
            self._ended.popitem(last=False)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to mount in an aiohttp application."""
        return [
            web.post("/v1/chat/completions", self._chat_completions),
            web.post("/v1/rollout/completed", self._completed),
        ]

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        digest = _presented(request)
        opened = self._open.get(digest)
        if opened is not None:
            return await self._bridge.answer(request, opened.rollout_id, partial(_prepare, opened))
        if digest in self._ended:
            return refusal(404, f"the rollout {self._ended[digest]} has ended", "rollout_not_found")
        return refusal(
            401, "missing or wrong key: it is the `api_key` of the rollout's request", "invalid_api_key"
        )

    async def _completed(self, request: web.Request) -> web.StreamResponse:
        digest = _presented(request)
        opened = self._open.get(digest)
        if opened is None:
            if digest in self._ended:
                return _said(
                    409, f"the rollout {self._ended[digest]} has ended; this changes nothing any more"
                )
            return _said(401, "missing or wrong key: it is the `api_key` of the rollout's request")
        content = await _body_of(request)
        if isinstance(content, web.Response):
            return content
        try:
            completion = _Completion.model_validate(content)
        except ValidationError as error:
            return _said(422, error.errors(include_url=False, include_input=False, include_context=False))
        if completion.rollout_id != opened.rollout_id:
            return _said(404, "there is no rollout of this id that the key belongs to")
        async with opened.completing:
            return await self._complete(opened, completion)

    async def _complete(self, opened: _OpenRollout, completion: _Completion) -> web.Response:
        """Commit how a rollout ended; the agent hears of it when that is durable."""
        rollout_id = opened.rollout_id
        if opened.completed:
            return _said(409, f"the rollout {rollout_id} was completed before; the first completion stands")
        if completion.status == "ERROR" and completion.finish_reason == CANCELLED:
            opened.completed = True
            opened.cancelled.set()
            return _accepted()
        sample = _sample_of(completion)
        ended, graded = outcome_of_completion(completion, sample)
        try:
            if sample.messages and self._artifact_root is not None:
                report = self._bridge.usage(rollout_id).report
                await asyncio.to_thread(_archive, self._artifact_root, opened.request, sample, report)
            await self._store.handle_completion(rollout_id, ended)
            await self._store.handle_grader(rollout_id, graded)
        except UnknownRolloutIdError:
            return _said(409, f"the rollout {rollout_id} has ended; this changes nothing any more")
        except Exception:
            # Edge of the process: whatever the commit raised, the agent hears "not durable" and tries again.
            logger.exception("the result of rollout %s could not be committed", rollout_id)
            return _said(500, "the result could not be committed; try again")
        opened.completed = True
        return _accepted()


def outcome_of_completion(
    completion: _Completion, sample: RolloutSample
) -> tuple[RolloutCompleteRequest, GraderCompleteRequest]:
    """Return a completion in the words of the two callbacks that other rollouts end with."""
    if completion.status == "ERROR":
        said = (completion.error_message or "the agent failed without saying why")[:_MAX_ERROR_CHARS]
        kind = RolloutErrorCategory.AGENT_ERROR
        return (
            RolloutCompleteRequest(status=RolloutStatus.FAILURE, err_message=said, err_category=kind),
            _ungraded(said, sample if sample.messages else None, kind),
        )
    succeeded, reward = RolloutCompleteRequest(status=RolloutStatus.SUCCESS), completion.reward
    if reward is None:
        return succeeded, _ungraded(NO_REWARD)
    if not math.isfinite(reward):
        said = f"the served agent reported the reward {reward}, which is no finite number"
        return succeeded, _ungraded(said, sample, RolloutErrorCategory.VALIDATION_ERROR)
    sample.reward = reward
    return succeeded, GraderCompleteRequest(status=GraderStatus.SUCCESS, sample=sample)


def _ungraded(
    said: str, sample: RolloutSample | None = None, kind: RolloutErrorCategory | None = None
) -> GraderCompleteRequest:
    return GraderCompleteRequest(
        status=GraderStatus.FAILURE, sample=sample, err_message=said, err_category=kind
    )


def _sample_of(completion: _Completion) -> RolloutSample:
    # In the words of loops that are hosted here; what else the agent says under that key is not its to say.
    extra = (completion.extra_fields or {}) | LoopOutcome(completion.finish_reason).to_fields()
    return RolloutSample(
        messages=completion.final_messages, metrics=completion.metrics or {}, extra_fields=extra
    )


def _archive(
    root: Path, request: RolloutRunRequest, sample: RolloutSample, report: dict[str, Any] | None
) -> None:
    """Write the conversation of a rollout; what fails is logged, never raised."""
    from osmosis_ai.rollout.trajectory.archive import RolloutArchive
    from osmosis_ai.rollout.trajectory.report import TrajectoryReport

    archive = RolloutArchive(
        request.rollout_id,
        label=request.label,
        metadata=dict(request.metadata) if request.metadata is not None else None,
        extra_fields=dict(request.extra_fields) if request.extra_fields is not None else None,
        root=root,
    )
    told = TrajectoryReport.model_validate(report) if report is not None else None
    archive.publish(ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample), told, None)


async def _prepare(opened: _OpenRollout, body: dict[str, Any]) -> tuple[str, ...]:
    """Make the call of a served agent one for a model; return what in it nobody asked for."""
    if body.pop("rollout_id", opened.rollout_id) != opened.rollout_id:
        raise RefusedCallError(
            404, "there is no rollout of this id that the key belongs to", "rollout_not_found"
        )
    for name in [name for name, value in body.items() if value is None]:
        del body[name]
    try:
        # An agent may begin before its acceptance, which names the tools, has arrived.
        tools = await asyncio.wait_for(asyncio.shield(opened.tools), TOOLS_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise RefusedCallError(409, "the rollout was not accepted yet", "rollout_not_accepted") from None
    except asyncio.CancelledError:
        if not opened.tools.cancelled():
            raise
        raise RefusedCallError(404, "the rollout has ended", "rollout_not_found") from None
    if tools and "tools" not in body:
        body["tools"] = tools
    return tuple(name for name, value in _UNASKED.items() if body.get(name) == value)


async def _body_of(request: web.Request) -> Any:
    """Return the JSON of a request, or the reply that refuses it."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return _said(413, f"the request is larger than {MAX_COMPLETION_BYTES} bytes")
    try:
        return loads(raw)
    except ValueError:
        return _said(422, "the body is not JSON")


def _presented(request: web.Request) -> bytes:
    """Return the digest of the key that a request shows, with or without the word Bearer."""
    header = request.headers.get("Authorization", "").strip()
    scheme, _, rest = header.partition(" ")
    return _digest(rest.strip() if scheme.lower() == "bearer" else header)


def _digest(key: str) -> bytes:
    # Keys are found by their digest, so that no comparison takes longer the more of a key is right.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _accepted() -> web.Response:
    return web.Response(body=b'{"status":"ok"}', content_type="application/json")


def _said(status: int, detail: object) -> web.Response:
    return web.Response(status=status, body=orjson.dumps({"detail": detail}), content_type="application/json")


def _without_nulls(value: Any) -> Any:
    """Return a tool as models are given it; the agent-loop line writes out what it leaves open."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


__all__ = ["LoopRolloutDriver"]

INIT_PATH = "/v1/rollout/init"
INIT_TIMEOUT_S = 60.0
INIT_TRIES = 3
_INIT_PAUSE_S = 0.5
MAX_TURNS = 10
MAX_TOKENS_TOTAL = 8192
_ACCEPTED = (200, 201, 202)


class LoopRolloutDriver(CallbackRolloutDriver):
    """Runs rollouts on a served agent."""

    def __init__(
        self,
        *,
        agent: ServedAgent,
        endpoints: LoopEndpoints,
        callback_store: CallbackStore,
        server_url: str,
        callback_timeout_s: float,
    ) -> None:
        super().__init__(callback_store, http_client=None, callback_timeout_s=callback_timeout_s)
        self._agent = agent
        self._location = agent.location
        self._endpoints = endpoints
        self._server_url = server_url.rstrip("/")
        self._patience_s = callback_timeout_s or DEFAULT_DEADLINE_S

    async def _admit(self, request: RolloutRunRequest) -> None:
        key = self._endpoints.open(request)
        accepted = await self._accepted(encode_request(self._init_body(request, key)))
        # First known to be there, then free to call: whoever counts its rollouts must not miss one that it has.
        self._agent.admitted.add(request.rollout_id)
        tools = accepted.get("tools") if isinstance(accepted, dict) else None
        offered = tools if isinstance(tools, list) else []
        try:
            self._endpoints.offer_tools(
                request.rollout_id, [tool for tool in offered if isinstance(tool, dict)]
            )
        except RecursionError:
            said = f"the tools of {self._agent.name} are nested too deeply to be told to a model."
            raise RolloutProtocolError(said, status_code=422) from None

    async def _await_terminal(self, rollout_id: str) -> TerminalCallbackResult:
        """Wait for the rollout's end."""
        terminal = asyncio.ensure_future(super()._await_terminal(rollout_id))
        given_up = asyncio.ensure_future(self._endpoints.wait_cancelled(rollout_id))
        try:
            await asyncio.wait({terminal, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if not terminal.done():
                self._agent.suspect()
                raise ConnectionError("it was told to end, and gave the rollout up")
            return terminal.result()
        finally:
            terminal.cancel()
            given_up.cancel()
            await asyncio.gather(terminal, given_up, return_exceptions=True)

    def _forget(self, rollout_id: str) -> None:
        self._agent.admitted.discard(rollout_id)
        self._endpoints.close(rollout_id)

    async def _accepted(self, body: bytes) -> Any:
        """Post an admission until it is accepted, and return the reply."""
        import aiohttp

        failures, deadline = 0, time.monotonic() + self._patience_s
        while True:
            try:
                accepted, wait_s = await self._post(body)
                if accepted is not None:
                    return accepted
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
                self._agent.suspect()
                failures += 1
                if failures >= INIT_TRIES:
                    raise
                wait_s = _INIT_PAUSE_S * failures
            if time.monotonic() + wait_s >= deadline:
                raise asyncio.TimeoutError(f"it was full for {self._patience_s:g} s")
            await asyncio.sleep(wait_s)

    async def _post(self, body: bytes) -> tuple[Any, float]:
        """Post an admission once; return the reply that accepts it, or None and for how long it is put off, in s."""
        async with self._client().post(
            self._location.address.base_url + INIT_PATH,
            data=body,
            headers={"Content-Type": "application/json", **self._location.headers},
            allow_redirects=False,
            timeout=total_timeout(INIT_TIMEOUT_S),
        ) as reply:
            content = await _content(reply)
            if reply.status == 429:
                return None, admission_pause_s(reply.headers)
            if reply.status == 401:
                # It took the key when the run began: it was started again, with another one.
                raise ConnectionError("it refuses the key (HTTP 401)")
            if reply.status not in _ACCEPTED:
                refuse_admission(reply.status, content.decode("utf-8", "replace"), f"POST {INIT_PATH}")
            try:
                return loads(content), 0.0
            except ValueError:
                raise ConnectionError(f"its answer to `POST {INIT_PATH}` is not JSON") from None

    def _init_body(self, request: RolloutRunRequest, key: str) -> dict[str, Any]:
        known = {"ground_truth": request.label} if request.label is not None else {}
        return {
            "rollout_id": request.rollout_id,
            "server_url": self._server_url,
            "messages": list(request.messages),
            "completion_params": {},
            "max_turns": MAX_TURNS,
            "max_tokens_total": MAX_TOKENS_TOTAL,
            "metadata": {**(request.extra_fields or {}), **(request.metadata or {}), **known},
            "api_key": key,
            "idempotency_key": None,
            "tool_server_url": None,
        }

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_agent_session(timeout_s=INIT_TIMEOUT_S)
        return self._session


async def _content(reply: aiohttp.ClientResponse) -> bytes:
    try:
        return await read_bounded(reply)
    except ValueError as error:
        raise ConnectionError(str(error)) from None
