"""Serve an agent loop, reporting every configuration error in one line before the first request.

The port is bound before the address is printed, so the printed address is reachable.
"""

from __future__ import annotations

import copy
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.processes.addresses import describe_bind_error, listen, stop_on_signals

from ..agent import RolloutAgentLoop
from ..exceptions import OsmosisRolloutError
from ..validation import ValidationResult, validate_agent_loop
from .app import create_app

if TYPE_CHECKING:
    from uvicorn import Config

    from osmosis_ai.api.credentials import Credentials

    from ..settings import RolloutSettings

DEFAULT_HOST = "0.0.0.0"
DEFAULT_PORT = 9000

_SHUTDOWN_S = 15
"""Seconds that open requests may take at shutdown."""

Say = Callable[[str], None]


class ServeError(OsmosisRolloutError):
    """The agent cannot be served with these options."""


@dataclass(frozen=True)
class ServeOptions:
    """Options for serving an agent loop, as for :func:`serve_agent_loop`."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    validate: bool = True
    log_level: str = "info"
    reload: bool = False
    settings: RolloutSettings | None = None
    skip_register: bool = False
    api_key: str | None = field(default=None, repr=False)
    local_debug: bool = False
    debug_dir: str | Path | None = None
    public_host: str | None = None


@dataclass(frozen=True)
class AgentServer:
    """An agent that is ready to be served, with its port bound.

    Attributes:
        agent: The agent loop.
        host, port: The listening address.
        api_key: Key that callers must send; None disables authentication.
        generated_key: Whether the key was generated and must be shown.
        credentials: Login for registration, if any.
        debug_dir: Directory for the agent's events, if any.
    """

    agent: RolloutAgentLoop
    host: str
    port: int
    api_key: str | None = field(repr=False)
    generated_key: bool
    credentials: Credentials | None = field(repr=False)
    public_host: str | None
    debug_dir: Path | None
    settings: RolloutSettings | None
    log_level: str
    module: str | None
    listener: socket.socket = field(repr=False)

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def facts(self) -> list[tuple[str, str]]:
        """Return the lines to print at start, including a generated key."""
        key = "(provided)" if self.api_key and not self.generated_key else self.api_key
        facts = [
            ("Agent", self.agent.name),
            ("Address", self.url),
            ("API key", key or "disabled: everybody who reaches it may use it"),
        ]
        if self.credentials is None:
            facts.append(("Registration", "skipped"))
        else:
            facts.append(("Registration", f"with {self.credentials.platform_url}, once it answers"))
        if self.debug_dir is not None:
            facts.append(("Debug log", str(self.debug_dir)))
        return facts

    def run(self, *, say: Say) -> None:
        """Serve until a signal stops the server. Rollouts that are still running are then reported as failed.

        Args:
            say: Called with the outcome of the registration.
        """
        import uvicorn

        if self.module is not None:
            self._run_and_reload()
            return
        server = uvicorn.Server(self._config(self._app(say)))
        with stop_on_signals(server), self.listener:
            server.run(sockets=[self.listener])

    def _app(self, say: Say) -> Any:
        return create_app(
            self.agent,
            settings=self.settings,
            credentials=self.credentials,
            server_host=self.host,
            server_port=self.port,
            api_key=self.api_key,
            debug_dir=self.debug_dir,
            public_host=self.public_host,
            say=say,
        )

    def _run_and_reload(self) -> None:
        import uvicorn
        from uvicorn.supervisors import ChangeReload

        from . import reloading

        os.environ[reloading.SERVED_AGENT_ENV] = reloading.ReloadedApp(
            module=str(self.module),
            host=self.host,
            port=self.port,
            api_key=self.api_key,
            registers=self.credentials is not None,
            public_host=self.public_host,
            debug_dir=self.debug_dir,
            settings=self.settings,
        ).model_dump_json()
        # uvicorn reloads only an app that is passed by name.
        config = self._config(
            f"{reloading.__name__}:{reloading.make_app.__name__}", reload=True, factory=True
        )
        ChangeReload(config, target=uvicorn.Server(config).run, sockets=[self.listener]).run()

    def _config(self, app: Any, **options: Any) -> Config:
        import uvicorn

        return uvicorn.Config(
            app,
            log_level=self.log_level,
            log_config=_log_config(self.log_level),
            timeout_graceful_shutdown=_SHUTDOWN_S,
            **options,
        )


def serve_agent_loop(
    agent_loop: RolloutAgentLoop | str,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    validate: bool = True,
    log_level: str = "info",
    reload: bool = False,
    settings: RolloutSettings | None = None,
    skip_register: bool = False,
    api_key: str | None = None,
    local_debug: bool = False,
    debug_dir: str | Path | None = None,
    public_host: str | None = None,
) -> None:
    """Serve an agent loop until a signal stops it, printing address and key to stderr.

    Args:
        agent_loop: The agent. Must be ``module:attribute`` if it is reloaded.
        host, port: Listening address; port 0 takes a free port.
        validate: Check the agent first.
        log_level: Level of the log on stderr.
        reload: Restart when a file below the working directory changes.
        settings: Limits and timeouts (default: the process's).
        skip_register: Do not register with the platform; no login is needed.
        api_key: Key that callers must send. None generates a key and shows it.
        local_debug: Disable authentication and registration.
        debug_dir: Parent of a new directory for the agents' events.
        public_host: Address of this machine for the platform.

    Raises:
        ImportError: The `server` extra is not installed.
        ServeError: The agent cannot be served with these options.
        AgentLoopValidationError: The agent is invalid.
    """
    options = ServeOptions(
        host=host,
        port=port,
        validate=validate,
        log_level=log_level,
        reload=reload,
        settings=settings,
        skip_register=skip_register,
        api_key=api_key,
        local_debug=local_debug,
        debug_dir=debug_dir,
        public_host=public_host,
    )
    server = prepare_server(agent_loop, options)
    for name, value in server.facts():
        _say(f"{name}: {value}")
    server.run(say=_say)


def prepare_server(agent_loop: RolloutAgentLoop | str, options: ServeOptions) -> AgentServer:
    """Prepare everything that :func:`serve_agent_loop` needs. Raises the same errors."""
    _require_server_extra()
    api_key, local = options.api_key, options.local_debug
    if local and api_key is not None:
        raise ServeError("--local lets everybody in and --api-key does not: choose one of them")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip()):
        raise ServeError("an API key is made of printable ASCII characters, and has at least one")
    credentials = None if options.skip_register or local else _login()
    agent, module = _loaded(agent_loop, reload=options.reload)
    if options.validate:
        validate_agent_loop(agent).raise_if_invalid()
    directory = None if options.debug_dir is None else _new_debug_directory(Path(options.debug_dir))
    listener = _listen(options.host, options.port)
    return AgentServer(
        agent=agent,
        host=options.host,
        port=listener.getsockname()[1],
        api_key=None if local else api_key or _new_key(),
        generated_key=not local and api_key is None,
        credentials=credentials,
        public_host=options.public_host,
        debug_dir=directory,
        settings=options.settings,
        log_level=options.log_level,
        module=module,
        listener=listener,
    )


def validate_and_report(agent_loop: RolloutAgentLoop, verbose: bool = False) -> ValidationResult:
    """Validate an agent loop, print a summary to stdout and errors to stderr, and return the result.

    Args:
        agent_loop: The agent loop.
        verbose: Print warnings as well.
    """
    result = validate_agent_loop(agent_loop)
    for error in result.errors:
        _say(f"error: {error}")
    verdict = "valid" if result.valid else "not valid"
    counts = f"{result.tool_count} tools, {len(result.warnings)} warnings"
    sys.stdout.write(f"Agent loop '{result.agent_name}' is {verdict}: {counts}\n")
    for warning in result.warnings if verbose else ():
        sys.stdout.write(f"warning: {warning}\n")
    return result


def _require_server_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        from osmosis_ai.errors import install_command

        raise ImportError(
            f"serving an agent needs the `server` extra (no module named '{error.name}'). "
            f"Install it with: {install_command('server')}"
        ) from error


def _login() -> Credentials:
    from osmosis_ai.api.credentials import require_credentials

    try:
        return require_credentials()
    except OsmosisError as error:
        raise ServeError(
            f"registering needs a login: {error.message}",
            code=error.code,
            details=error.details,
            hint=f"{error.hint or 'log in with `osmosis login`'}; or serve without the platform (--skip-register)",
        ) from error


def _loaded(agent_loop: RolloutAgentLoop | str, *, reload: bool) -> tuple[RolloutAgentLoop, str | None]:
    if isinstance(agent_loop, str):
        from ..loading import load_agent_loop

        return load_agent_loop(agent_loop), agent_loop if reload else None
    if reload:
        raise ServeError(
            "an object cannot be loaded again when its file changes",
            hint="give 'module:attribute' instead, or use `osmosis serve -m MODULE --reload`",
        )
    return agent_loop, None


def _new_key() -> str:
    from ..api_key import generate_api_key

    return generate_api_key()


def _new_debug_directory(parent: Path) -> Path:
    directory = parent / str(int(time.time()))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServeError(f"the debug log cannot be written to {directory}: {error.strerror}") from error
    return directory


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ServeError(
            f"cannot listen on {host}:{port}: {describe_bind_error(error)}",
            hint="choose another address with --host, --port",
        ) from error


def _log_config(log_level: str) -> dict[str, Any]:
    """Return uvicorn's logging configuration with all output on stderr, including this package's."""
    from uvicorn.config import LOGGING_CONFIG

    config: dict[str, Any] = copy.deepcopy(LOGGING_CONFIG)
    config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    level = logging.getLevelName(log_level.upper())
    config["loggers"]["osmosis_ai"] = {"handlers": ["default"], "level": level, "propagate": False}
    return config


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
