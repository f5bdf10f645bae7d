"""`osmosis platform start`: a platform of one's own, in the foreground."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, OperationResult, StreamResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from types import FrameType

    from osmosis_ai.platform.config import PlatformConfig
    from osmosis_ai.platform.server import RunningPlatform


_NOT_READY = "Stopped before it was ready; the next start begins where this one was."
_STEPS, _REQUESTS = "steps", "http.request_metering"


def start(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (OSMOSIS_PLATFORM_HOST; default: this machine).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen on, 0 for a free one (OSMOSIS_PLATFORM_PORT; default: 8733).",
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(help="The https URL at which a proxy makes it reachable (OSMOSIS_PUBLIC_URL)."),
    ] = None,
    login: Annotated[
        bool, typer.Option("--login", help="Also log this user in to it, as its administrator.")
    ] = False,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(
            help="How to write the log to stderr; json: an object a line, with a line for each request."
        ),
    ] = "text",
) -> StreamResult:
    """Run the platform until Ctrl-C or `osmosis platform stop`; one line says when it is ready.

    Its data is in OSMOSIS_HOME. The first start makes an administrator and a workspace and says how to
    sign in. Whatever ends it, even `kill -9`, runs that were under way go on at the next start.

    Examples:
        osmosis platform start --login
        osmosis platform start --host 0.0.0.0 --public-url https://osmosis.example.org
        osmosis platform start --log-format json
    """
    message = Column("", value=lambda item: str(item["message"]))
    logs_json = log_format == "json"
    try:
        with _ended_by_signals():
            config = _config(host, port, public_url)
    except _EndedWhileLoadingError:
        return StreamResult(items=_nothing(logs_json), columns=[message])
    return StreamResult(items=_serve(config, login, logs_json), columns=[message])


class _EndedWhileLoadingError(KeyboardInterrupt):
    """The start was told to end before it had begun anything."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the block by an exception: loading a platform takes seconds on a busy machine."""

    def end(_number: int, _frame: FrameType | None) -> None:
        restore()
        raise _EndedWhileLoadingError

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    former = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        restore()


def _config(host: str | None, port: int | None, public_url: str | None) -> PlatformConfig:
    """Load all that a platform needs, and return how it is to be."""
    from osmosis_ai.cli.platform.local_platform import platform_extra

    with platform_extra():
        import osmosis_ai.platform.server  # noqa: F401 - all it needs, or the extra is missed here
        from osmosis_ai.platform.config import from_environment

    config = from_environment()
    if public_url is not None:
        from osmosis_ai.api.platform_url import normalize_platform_url

        config = replace(config, public_url=normalize_platform_url(public_url))
    if host is not None:
        config = replace(config, host=host)
    if port is not None:
        config = replace(config, port=port)
    return config


def _nothing(logs_json: bool) -> Iterator[dict[str, Any]]:
    """Yield no line; what logs objects says nothing of an end before there was a log."""
    if not logs_json:
        current().note(_NOT_READY)
    yield from ()


def _serve(config: PlatformConfig, login: bool, logs_json: bool) -> Iterator[dict[str, Any]]:
    """Yield the one line that says it is ready, and end when the platform has."""
    from osmosis_ai.cli.output.envelopes import result_envelope
    from osmosis_ai.platform.server import StartEndedError, run_platform

    handler: type[logging.Handler] = _JsonToStderr if logs_json else _ToStderr
    logging.getLogger().addHandler(handler(level=logging.WARNING))
    for told in (_STEPS, _REQUESTS) if logs_json else ():
        logger = logging.getLogger(f"osmosis_ai.platform.{told}")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler())
    # In a log of objects nothing stands that is none.
    note = logging.getLogger(f"osmosis_ai.platform.{_STEPS}").info if logs_json else current().note
    try:
        with run_platform(config) as platform:
            saved_in = _log_in(platform) if login else None
            ready = _ready(platform, saved_in)
            yield result_envelope(ready)
            # A log is kept and read by others: it gets no password.
            for line in (
                [f"The platform is ready at {platform.config.base_url}"] if logs_json else ready.next_steps
            ):
                note(line)
            platform.wait()
            note("Stopping; runs under way go on at the next start.")
    except StartEndedError:
        note(_NOT_READY)


def _ready(platform: RunningPlatform, saved_in: str | None) -> OperationResult:
    url, first = platform.config.base_url, platform.first_login
    steps = []
    if first is not None:
        steps.append(
            f"First start: user {first.email}, password {first.password} (not shown again), "
            f"workspace {first.workspace_name}."
        )
    steps.append(f"Data: {platform.config.home}")
    steps.append("Use it in the Git repository of your rollouts:")
    steps.append(f"  osmosis --platform {url} login")
    steps.append("  osmosis platform connect .")
    return OperationResult(
        operation="platform.start",
        message=f"The platform is ready at {url}",
        resource={
            "url": url,
            "pid": platform.process.pid,
            "home": str(platform.config.home),
            "version": platform.process.version,
            "first_login": first
            and {"email": first.email, "password": first.password, "workspace": first.workspace_name},
            "login": saved_in and {"token_store": saved_in},
        },
        next_steps=steps,
    )


def _log_in(platform: RunningPlatform) -> str:
    """Save a login of the administrator, unless one is there that works; return where its token is."""
    from osmosis_ai.api.credentials import Credentials, CredentialStore
    from osmosis_ai.api.wire.auth import User
    from osmosis_ai.platform.accounts import TokenRejected

    store, url, accounts = CredentialStore(), platform.config.base_url, platform.services.accounts
    try:
        saved = store.load(url)
        if saved is not None:
            accounts.authenticate(saved.token)
            return saved.source
    except TokenRejected:
        pass  # of a platform that was at this address before
    except OsmosisError as error:
        current().warn(error.message, code=error.code)
    admin = next((user for user in accounts.users() if user.is_admin and user.disabled_at is None), None)
    if admin is None:
        raise OsmosisError(
            "the platform has no administrator to log in as.",
            hint="add one with `osmosis platform user add EMAIL --admin`, or use `osmosis login`",
        )
    token, plain = accounts.create_token(admin.id, name="osmosis platform start --login")
    kept_in = store.save(
        Credentials(
            token=plain,
            platform_url=url,
            source="file",
            user=User(id=admin.id, email=admin.email, name=admin.name),
            token_id=token.id,
            expires_at=token.expires_at,
        )
    )
    for warning in store.warnings:
        current().warn(warning.message, code=warning.code)
    return kept_in


class _JsonToStderr(logging.Handler):
    """What the platform logs, an object a line, secret values taken out of its texts."""

    def emit(self, record: logging.LogRecord) -> None:
        from datetime import datetime, timezone

        from osmosis_ai.platform.http.request_metering import REQUEST_ID

        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = logging.Formatter().formatException(record.exc_info)
        current().say_json(line)


class _ToStderr(logging.Handler):
    """What the platform logs, through the one way to stderr, which blanks what is secret."""

    def emit(self, record: logging.LogRecord) -> None:
        output, level, text = current(), record.levelname.lower(), self.format(record)
        if output.mode == "json":
            output.say_json({"log": {"level": level, "logger": record.name, "message": text}})
        else:
            output.say(f"{level}: {text}")
