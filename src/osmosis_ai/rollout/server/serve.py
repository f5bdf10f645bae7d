"""Serve an agent loop, reporting every configuration error in one line before the first request."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from osmosis_ai.errors import OsmosisError, install_command
from osmosis_ai.processes.addresses import describe_bind_error, listen, stop_on_signals

from ..cli_utils import load_agent_loop
from ..config import RolloutSettings
from ..core.base import RolloutAgentLoop
from ..core.exceptions import OsmosisRolloutError
from ..validator import ValidationResult, validate_agent_loop
from .agent_loop import create_app
from .api_key import generate_api_key

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Config

    from osmosis_ai.api.credentials import Credentials

DEFAULT_HOST = "0.0.0.0"
DEFAULT_PORT = 9000

_SHUTDOWN_S = 15  # for open requests at shutdown
_AGENT_ENV, _OPTIONS_ENV = "_OSMOSIS_SERVED_AGENT", "_OSMOSIS_SERVED_OPTIONS"


class ServeError(OsmosisRolloutError):
    """The agent cannot be served with these options."""


class ServeOptions(BaseModel):
    """Options for serving an agent loop, as for :func:`serve_agent_loop`."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    validate_agent: bool = True
    log_level: str = "info"
    reload: bool = False
    settings: RolloutSettings | None = None
    skip_register: bool = False
    api_key: str | None = Field(default=None, repr=False)
    local_debug: bool = False
    debug_dir: Path | None = None
    public_host: str | None = None


@dataclass(frozen=True)
class AgentServer:
    """An agent that is ready to be served, with its port bound. A ``module`` is reloaded when a file changes.

    ``options`` has the final port, key (None disables authentication) and directory of events. A process that was started
    for a reload inherits its ``listener``.
    """

    agent: RolloutAgentLoop
    module: str | None
    options: ServeOptions
    generated_key: bool
    credentials: Credentials | None = field(repr=False)
    listener: socket.socket | None = field(repr=False)

    @property
    def url(self) -> str:
        """The server's address."""
        host = self.options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.options.port}"

    def facts(self) -> list[tuple[str, str]]:
        """Return the lines to print at start, including a generated key."""
        key, login, debug_dir = self.options.api_key, self.credentials, self.options.debug_dir
        shown = key if key is None or self.generated_key else "(provided)"
        return [
            ("Agent", self.agent.name),
            ("Address", self.url),
            ("API key", shown or "disabled: everybody who reaches it may use it"),
            ("Registration", f"with {login.platform_url}, once it answers" if login else "skipped"),
            *([("Debug log", str(debug_dir))] if debug_dir is not None else []),
        ]

    def run(self, *, say: Callable[[str], None]) -> None:
        """Serve until a signal stops the server. ``say`` is called with the outcome of the registration."""
        import uvicorn

        assert self.listener is not None
        if self.module is None:
            server = uvicorn.Server(self._config(self.app(say)))
            with stop_on_signals(server), self.listener:
                server.run(sockets=[self.listener])
            return
        from uvicorn.supervisors import ChangeReload

        os.environ[_AGENT_ENV] = self.module
        os.environ[_OPTIONS_ENV] = self.options.model_dump_json()
        # uvicorn reloads only an app that is passed by name.
        config = self._config(f"{__name__}:{reloaded_app.__name__}", reload=True, factory=True)
        ChangeReload(config, target=uvicorn.Server(config).run, sockets=[self.listener]).run()

    def app(self, say: Callable[[str], None]) -> FastAPI:
        """Return the application."""
        options = self.options
        return create_app(
            self.agent,
            settings=options.settings,
            credentials=self.credentials,
            server_host=options.host,
            server_port=options.port,
            api_key=options.api_key,
            debug_dir=options.debug_dir,
            public_host=options.public_host,
            say=say,
        )

    def _config(self, app: Any, **options: Any) -> Config:
        import uvicorn

        level = self.options.log_level
        # All output goes to stderr, including this package's.
        log_config: dict[str, Any] = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
        log_config["handlers"]["access"]["stream"] = "ext://sys.stderr"
        log_config["loggers"]["osmosis_ai"] = {
            "handlers": ["default"],
            "level": logging.getLevelName(level.upper()),
            "propagate": False,
        }
        return uvicorn.Config(
            app, log_level=level, log_config=log_config, timeout_graceful_shutdown=_SHUTDOWN_S, **options
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
        validate_agent=validate,
        log_level=log_level,
        reload=reload,
        settings=settings,
        skip_register=skip_register,
        api_key=api_key,
        local_debug=local_debug,
        debug_dir=None if debug_dir is None else Path(debug_dir),
        public_host=public_host,
    )
    server = prepare_server(agent_loop, options)
    for name, value in server.facts():
        _print(f"{name}: {value}")
    server.run(say=_print)


def prepare_server(agent_loop: RolloutAgentLoop | str, options: ServeOptions) -> AgentServer:
    """Prepare everything that :func:`serve_agent_loop` needs. Raises the same errors."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"serving an agent needs the `server` extra (no module named '{error.name}'). "
            f"Install it with: {install_command('server')}"
        ) from error
    key, local = options.api_key, options.local_debug
    if local and key is not None:
        raise ServeError("--local and --api-key cannot be combined")
    if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
        raise ServeError("an API key consists of printable ASCII characters and is not empty")
    credentials = None if options.skip_register or local else _login()
    module = None
    if isinstance(agent_loop, str):
        module = agent_loop if options.reload else None
        agent_loop = load_agent_loop(agent_loop)
    elif options.reload:
        raise ServeError(
            "an object cannot be loaded again when its file changes",
            hint="give 'module:attribute' instead, or use `osmosis serve -m MODULE --reload`",
        )
    if options.validate_agent:
        validate_agent_loop(agent_loop).raise_if_invalid()
    debug_dir = options.debug_dir
    if debug_dir is not None:
        debug_dir /= str(int(time.time()))
        try:
            debug_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ServeError(f"cannot write the debug log to {debug_dir}: {error.strerror}") from error
    try:
        listener = listen(options.host, options.port)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ServeError(
            f"cannot listen on {options.host}:{options.port}: {describe_bind_error(error)}",
            hint="choose another address with --host, --port",
        ) from error
    final = {
        "port": listener.getsockname()[1],
        "api_key": None if local else key or generate_api_key(),
        "debug_dir": debug_dir,
    }
    return AgentServer(
        agent=agent_loop,
        module=module,
        options=options.model_copy(update=final),
        generated_key=not local and key is None,
        credentials=credentials,
        listener=listener,
    )


def reloaded_app() -> FastAPI:
    """Load the agent again in the process that restarts on file changes, and return its application."""
    from osmosis_ai.api.credentials import require_credentials

    if (parent := multiprocessing.parent_process()) is not None:

        def watch() -> None:
            parent.join()
            os._exit(1)

        # This process ends when the process that watches the files has ended for any reason.
        threading.Thread(target=watch, name="parent-watch", daemon=True).start()
    options = ServeOptions.model_validate_json(os.environ.pop(_OPTIONS_ENV))
    try:
        agent = load_agent_loop(os.environ.pop(_AGENT_ENV))
        credentials = None if options.skip_register or options.local_debug else require_credentials()
    except OsmosisError as error:
        _print(f"Error: {error.message}")
        _print("hint: it is loaded again when a file changes")
        raise SystemExit(1) from None
    return AgentServer(agent, None, options, False, credentials, None).app(_print)


def validate_and_report(agent_loop: RolloutAgentLoop, verbose: bool = False) -> ValidationResult:
    """Validate an agent loop, print a summary to stdout and errors to stderr, and return the result."""
    result = validate_agent_loop(agent_loop)
    for error in result.errors:
        _print(f"error: {error}")
    verdict = "valid" if result.valid else "not valid"
    counts = f"{result.tool_count} tools, {len(result.warnings)} warnings"
    sys.stdout.write(f"Agent loop '{result.agent_name}' is {verdict}: {counts}\n")
    for warning in result.warnings if verbose else ():
        sys.stdout.write(f"warning: {warning}\n")
    return result


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


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
