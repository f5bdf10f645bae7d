"""Remote agents: their addresses, their health, and the rollouts that run on them."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import aiohttp
from aiohttp import web
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver
from pydantic import BaseModel, FailFast, Field, ValidationError

from osmosis_ai.api.models.rollouts import HealthCheckResult, RolloutServerInfo
from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.controller.callbacks import (
    ADMISSION_TIMEOUT_S,
    Acknowledgment,
    CallbackAddress,
    CallbackRolloutDriver,
    CallbackStore,
    HttpRefusal,
    RolloutProtocolError,
    committed,
    json_reply,
    read_body,
    read_bounded,
)
from osmosis_ai.controller.model_proxy import RefusedCallError
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.llm.replies import loads
from osmosis_ai.llm.transport import connection_failure, open_session
from osmosis_ai.rollout.extra_fields import CANCELLED, LoopOutcome
from osmosis_ai.rollout.types import (
    GraderCompleteRequest,
    GraderStatus,
    RolloutCompleteRequest,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

if TYPE_CHECKING:
    from osmosis_ai.controller.model_proxy import ModelProxy
    from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest

NETWORKS_ENV = "OSMOSIS_AGENT_NETWORKS"
"""Lists the networks of remote agents; if unset, all addresses are allowed except those that are always refused."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# Resolvers read `2852039166`, `0xa9fea9fe` and `169.254.43518` as addresses; no host name ends in a number.
_NUMERIC_HOST = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)")
# IPv6 addresses that lead to the IPv4 address in their last 32 bits.
_EMBEDDED_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
# Clouds serve credentials at these addresses, in addition to link-local ones.
_METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "fd00:ec2::254")))


class AgentAddressError(OsmosisError):
    """The address is malformed or refused."""


@dataclass(frozen=True)
class AgentAddress:
    """The host, not yet resolved, and port of an agent, and the key that it requires, if any."""

    host: str
    port: int
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise AgentAddressError(f"port {self.port} is not between 1 and 65535.")
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            is_name = _NAME.fullmatch(self.host) and not _NUMERIC_HOST.fullmatch(self.host)
            if len(self.host) > 253 or not is_name:
                message = f"{self.host[:253]!r} is neither a host name nor an IP address."
                raise AgentAddressError(message) from None
        else:
            require_allowed(self.host)

    @classmethod
    def parse(cls, text: str, api_key: str | None = None) -> AgentAddress:
        """Read ``HOST:PORT``; an IPv6 address is in brackets."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or len(port) > 5:
            raise AgentAddressError(f"'{text[:300]}' is not HOST:PORT, such as 127.0.0.1:9000.")
        return cls(host.removeprefix("[").removesuffix("]"), int(port), api_key)

    @property
    def base_url(self) -> str:
        """The agent's URL, without a trailing slash."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def is_local(self) -> bool:
        """Return whether this machine has the address; blocks while a name is resolved."""
        if is_loopback(self.host):
            return True
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            socket.create_server((self.host, 0), family=family).close()
        except (OSError, UnicodeError):
            return False
        return True


def allowed_networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Read the operator's networks, separated by commas."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        message = f"{NETWORKS_ENV} must list addresses or networks such as 10.0.0.0/24: {error}."
        raise OsmosisError(message) from None


def require_allowed(address: str) -> None:
    """Refuse an IP address that no agent may have."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and not (found.is_loopback or found.is_unspecified):
        # The check applies to the IPv4 address that it leads to.
        if any(found in network for network in _EMBEDDED_IPV4):
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        else:
            found = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1] or found
    is_reserved = found.is_multicast or found.is_unspecified or (found.version == 4 and found.is_reserved)
    if found.is_link_local or is_reserved or found in _METADATA:
        kinds = "link-local, multicast, unspecified and cloud metadata addresses"
        raise AgentAddressError(f"{address} is refused: {kinds} are not allowed.")
    networks = allowed_networks(os.environ.get(NETWORKS_ENV, ""))
    if networks and not any(found in network for network in networks):
        raise AgentAddressError(f"{address} is refused: it is in none of the networks of {NETWORKS_ENV}.")


class _CheckedResolver(ThreadedResolver):
    """Resolves no name to a refused address."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        try:
            for entry in found:
                require_allowed(entry["host"])
        except AgentAddressError as error:
            raise OSError(error.message) from None
        return found


def open_agent_session(timeout_s: float, headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """Open a session to remote agents; it uses no proxy and connects to no refused address."""
    return open_session(timeout_s=timeout_s, headers=headers, resolver=_CheckedResolver())


PROBE_TIMEOUT_S = 5.0
POLL_S = 2.0
RETURN_LIMIT_S = 120.0
_MAX_MISSES = 3
_MAX_DEATHS = 5


class RemoteAgentError(OsmosisError):
    """A remote agent is unusable or unreachable."""

    default_code = "NETWORK"
    is_infrastructure = True


async def probe_agent(http: aiohttp.ClientSession, address: AgentAddress) -> HealthCheckResult:
    """Check a remote agent's health; redirects are not followed, and time and size of the reply are bounded."""
    has_key = address.api_key is not None
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    # Only an agent without a key lacks the first path; its second one needs no key.
    for path in ("/platform/health",) if has_key else ("/platform/health", "/health"):
        try:
            url = address.base_url + path
            async with http.get(
                url, headers=address.headers, allow_redirects=False, timeout=timeout
            ) as reply:
                body = await read_bounded(reply)
        except asyncio.TimeoutError:
            return HealthCheckResult(error=f"it did not answer `GET {path}` within {PROBE_TIMEOUT_S:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return HealthCheckResult(error=connection_failure(error))
        if reply.status != 404:
            break
    if reply.status == 200:
        with contextlib.suppress(ValidationError):
            info = RolloutServerInfo.model_validate_json(body)
            if info.status == "healthy" and len(info.agent_loop or "") <= 256:
                return HealthCheckResult(server_info=info)
        return HealthCheckResult(error="its reply is not the health report of a remote agent")
    problem = f"`GET {path}` failed"
    if reply.status == 401:
        problem = "it refuses the key" if has_key else "it requires a key, and none is set"
    elif reply.status == 404:
        problem = "it is not a remote agent" + (", or was started without a key" if has_key else "")
    return HealthCheckResult(error=f"{problem} (HTTP {reply.status})")


def unregistered_agent(name: str) -> NotFoundError:
    """Return the error for an unknown agent name."""
    return NotFoundError(
        f"no remote agent '{name[:255]}' is registered in this workspace.",
        hint="`osmosis serve` registers the agent that it serves",
    )


class RemoteAgent:
    """Watches a remote agent, as :class:`osmosis_ai.controller.server_process.RolloutServer` does a process."""

    capacity: int | None = None

    def __init__(
        self,
        locate: Callable[[], AgentAddress],
        *,
        name: str,
        callback_address: CallbackAddress | None = None,
        hint: str | None = None,
    ) -> None:
        self.name = name
        self.callback_address = callback_address or CallbackAddress()
        self.address: AgentAddress
        self.admitted: set[str] = set()
        self.suspected = asyncio.Event()
        self._locate, self._hint = locate, hint
        self._http: aiohttp.ClientSession | None = None
        self._deaths = 0
        self._cause_of_death = ""

    @property
    def base_url(self) -> str:
        return self.address.base_url

    async def start(self) -> None:
        """Locate the agent and check that it can be used."""
        self._http = open_agent_session(PROBE_TIMEOUT_S)
        health = await self._find()
        if health.error is not None:
            raise RemoteAgentError(f"{self.name} cannot be used: {health.error}.", hint=self._hint)
        is_loopback_only = is_loopback(self.callback_address.host)
        if is_loopback_only and not await asyncio.to_thread(self.address.is_local):
            raise RemoteAgentError(
                f"{self.name} runs on another machine and cannot reach the model at this machine's loopback address.",
                hint="set OSMOSIS_BRIDGE_HOST to a name or address of this machine that the agent can reach",
                code="VALIDATION",
            )

    async def stop(self) -> None:
        """Stop watching the agent, which continues to run."""
        if self._http is not None:
            await self._http.close()

    def made_progress(self) -> None:
        self._deaths = 0

    async def death(self) -> OsmosisError:
        """Wait until the agent is gone, and return why; setting :attr:`suspected` probes it at once."""
        misses, pause_s = 0, POLL_S
        while misses < _MAX_MISSES:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.suspected.wait(), pause_s)
            self.suspected.clear()
            admitted = set(self.admitted)
            health = await self._probe()
            info, error = health.server_info, health.error
            pause_s = POLL_S / 10 if error is not None else POLL_S
            counts = info is not None and "active_rollouts" in info.model_fields_set
            # It runs fewer rollouts than were admitted both before and after the probe.
            if info is not None and counts and info.active_rollouts < len(admitted & self.admitted):
                error = "it was restarted and lost its rollouts"
            misses = misses + 1 if error is not None else 0
            self._cause_of_death = error or ""
        return RemoteAgentError(f"{self.name} is unavailable: {self._cause_of_death}.")

    async def revive(self, note: Callable[[str], None]) -> None:
        """Wait until the agent is back."""
        self._deaths += 1
        if self._deaths > _MAX_DEATHS:
            raise self._lost(f"was lost {self._deaths} times without finishing a rollout in between")
        limit, deadline = f"{RETURN_LIMIT_S:g} s", time.monotonic() + RETURN_LIMIT_S
        note(f"{self.name} is unavailable: {self._cause_of_death}. Waiting up to {limit}.")
        while (error := (await self._find()).error) is not None:
            if time.monotonic() >= deadline:
                raise self._lost(f"did not return within {limit}: {error}")
            await asyncio.sleep(POLL_S / 2)

    async def _find(self) -> HealthCheckResult:
        self.address = await asyncio.to_thread(self._locate)
        return await self._probe()

    async def _probe(self) -> HealthCheckResult:
        assert self._http is not None
        return await probe_agent(self._http, self.address)

    def _lost(self, reason: str) -> RemoteAgentError:
        hint = "start the agent, then run the same command again; finished attempts are kept"
        return RemoteAgentError(f"{self.name} {reason}.", hint=hint)


# Clients of the agent-loop line set these in every call, whether or not the agent asked for them.
_CLIENT_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "logprobs": True}
_MAX_ERROR_CHARS = 10_000
_WRONG_KEY = "missing or wrong key: use the `api_key` of the rollout's request"
_WRONG_ROLLOUT = "the key does not belong to a rollout with this id"
_ENDED = "the rollout has ended"


class _Completion(BaseModel):
    """The body of `/v1/rollout/completed`; other keys are ignored."""

    rollout_id: str
    status: Literal["COMPLETED", "ERROR"]
    # One error is enough, because a body may have millions of messages.
    final_messages: Annotated[list[dict[str, Any]], FailFast()] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: dict[str, Any] | None = None
    extra_fields: dict[str, Any] | None = None


class RemoteAgentDriver(CallbackRolloutDriver):
    """Runs rollouts on a remote agent, and serves its model calls and completions (the agent-loop line)."""

    def __init__(
        self,
        agent: RemoteAgent,
        callback_store: CallbackStore,
        model_proxy: ModelProxy,
        *,
        server_url: Callable[[], str],
        callback_timeout_s: float,
    ) -> None:
        super().__init__(callback_store, callback_timeout_s=callback_timeout_s)
        self._agent, self._model_proxy, self._server_url = agent, model_proxy, server_url
        # The tools of each open rollout; model calls wait until they are known.
        self._tools: dict[str, asyncio.Future[list[dict[str, Any]]]] = {}
        self._secret = secrets.token_bytes(32)

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        try:
            return await super().run(request)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
            self._agent.suspected.set()  # It is unreachable, or abandoned the rollout because it is shutting down.
            raise
        finally:
            self._close(request.rollout_id)

    def open(self, rollout_id: str) -> str:
        """Serve a rollout's calls from now on, and return the key that they require."""
        self._tools[rollout_id] = asyncio.get_running_loop().create_future()
        return self._key(rollout_id)

    def offer_tools(self, rollout_id: str, accepted: object) -> None:
        """Add the tools of an accepted request to every model call without tools."""
        tools = accepted.get("tools") if isinstance(accepted, dict) else None
        if rollout_id in self._tools:
            offered = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
            self._tools[rollout_id].set_result(_without_nulls(offered))

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self._chat_completions),
            web.post("/v1/rollout/completed", self._completed),
        ]

    def _close(self, rollout_id: str) -> None:
        self._agent.admitted.discard(rollout_id)
        if rollout_id in self._tools:
            self._tools.pop(rollout_id).cancel()

    def _open_session(self) -> aiohttp.ClientSession:
        return open_agent_session(ADMISSION_TIMEOUT_S, self._agent.address.headers)

    async def _admit(self, request: RolloutRunRequest) -> None:
        label = {"ground_truth": request.label} if request.label is not None else {}
        body = {
            "rollout_id": request.rollout_id,
            "server_url": self._server_url(),
            "messages": list(request.messages),
            "completion_params": {},
            "max_turns": 10,
            "max_tokens_total": 8192,
            "metadata": {**(request.extra_fields or {}), **(request.metadata or {}), **label},
            "api_key": self.open(request.rollout_id),
            "idempotency_key": None,
            "tool_server_url": None,
        }
        try:
            content = await self._post_admission(f"{self._agent.base_url}/v1/rollout/init", body)
        except RolloutProtocolError as error:
            if error.status_code != 401:
                raise
            # It accepted the key when the run started, so the agent was restarted with another one.
            raise ConnectionError("it refuses the key (HTTP 401)") from None
        # Before calls proceed: a count of the agent's rollouts must include this one.
        self._agent.admitted.add(request.rollout_id)
        try:
            self.offer_tools(request.rollout_id, loads(content))
        except (ValueError, RecursionError):
            message = f"the reply of {self._agent.name} is not JSON, or its tools are nested too deeply."
            raise RolloutProtocolError(message, status_code=422) from None

    def _key(self, rollout_id: str) -> str:
        return f"{rollout_id}.{hmac.digest(self._secret, rollout_id.encode(), 'sha256').hex()}"

    def _authenticate(self, request: web.Request) -> str | None:
        """Return the rollout id of the request's key, with or without the word Bearer; None if the key is wrong."""
        key = request.headers.get("Authorization", "").strip()
        scheme, _, rest = key.partition(" ")
        if scheme.lower() == "bearer":
            key = rest.strip()
        rollout_id = key.rpartition(".")[0]
        is_right = key.isascii() and hmac.compare_digest(key, self._key(rollout_id))
        return rollout_id if is_right else None

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        rollout_id = self._authenticate(request)
        if rollout_id is None:
            raise RefusedCallError(401, _WRONG_KEY, "invalid_api_key")
        if rollout_id not in self._tools:
            raise RefusedCallError(404, _ENDED, "rollout_not_found")
        prepare = partial(_prepare, rollout_id, self._tools[rollout_id])
        return await self._model_proxy.answer(request, rollout_id, prepare)

    async def _completed(self, request: web.Request) -> web.StreamResponse:
        """Commit how a rollout ended; the agent gets its reply when that is durable."""
        rollout_id = self._authenticate(request)
        if rollout_id is None:
            raise HttpRefusal(401, _WRONG_KEY)
        if rollout_id not in self._tools:
            raise HttpRefusal(409, _ENDED)
        completion = await read_body(request, _Completion)
        if completion.rollout_id != rollout_id:
            raise HttpRefusal(404, _WRONG_ROLLOUT)
        if completion.status == "ERROR" and completion.finish_reason == CANCELLED:
            self._store.fail(rollout_id, ConnectionError("it was shut down and abandoned the rollout"))
        else:
            await committed(rollout_id, self._commit(completion))
        # The first completion counts.
        self._close(rollout_id)
        return json_reply({"status": "ok"})

    async def _commit(self, completion: _Completion) -> Acknowledgment:
        ended, graded = _callbacks(completion)
        await self._store.handle_completion(completion.rollout_id, ended)
        return await self._store.handle_grader(completion.rollout_id, graded)


def _callbacks(completion: _Completion) -> tuple[RolloutCompleteRequest, GraderCompleteRequest]:
    """Return a completion as the two callbacks of the rollout protocol."""
    # An agent cannot overwrite the fields that hosted loops report.
    outcome = LoopOutcome(completion.finish_reason).to_fields()
    sample = RolloutSample(
        messages=completion.final_messages,
        metrics=completion.metrics or {},
        extra_fields=(completion.extra_fields or {}) | outcome,
    )
    ended = RolloutCompleteRequest(status=RolloutStatus.SUCCESS)
    graded = GraderCompleteRequest(status=GraderStatus.FAILURE)
    if completion.status == "ERROR":
        ended.status, ended.err_category = RolloutStatus.FAILURE, RolloutErrorCategory.AGENT_ERROR
        message = completion.error_message or "the agent failed without an error message"
        ended.err_message = graded.err_message = message[:_MAX_ERROR_CHARS]
        graded.err_category = ended.err_category
        graded.sample = sample if sample.messages else None
    elif completion.reward is not None and math.isfinite(completion.reward):
        sample.reward = completion.reward
        graded = GraderCompleteRequest(status=GraderStatus.SUCCESS, sample=sample)
    else:
        # The sample has the conversation, which is written for unscored attempts as well.
        graded.sample, graded.err_category = sample, RolloutErrorCategory.VALIDATION_ERROR
        graded.err_message = (
            "the remote agent reported no reward: set `reward` in its `RolloutResult`"
            if completion.reward is None
            else f"the reward of the remote agent is not a finite number: {completion.reward}"
        )
    return ended, graded


async def _prepare(
    rollout_id: str, tools: asyncio.Future[list[dict[str, Any]]], body: dict[str, Any]
) -> tuple[str, ...]:
    """Turn an agent's call into a model call; return the parameters that the agent did not set."""
    if body.pop("rollout_id", rollout_id) != rollout_id:
        raise RefusedCallError(404, _WRONG_ROLLOUT, "rollout_not_found")
    for name in [name for name, value in body.items() if value is None]:
        del body[name]
    # An agent may call before its acceptance, which names the tools, has arrived.
    await asyncio.wait({tools})
    if tools.cancelled():
        raise RefusedCallError(404, _ENDED, "rollout_not_found")
    if tools.result() and "tools" not in body:
        body["tools"] = tools.result()
    return tuple(name for name, value in _CLIENT_DEFAULTS.items() if body.get(name) == value)


def _without_nulls(value: Any) -> Any:
    """Return a tool without the nulls that the agent-loop line writes for unset fields."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
