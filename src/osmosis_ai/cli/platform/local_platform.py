"""The platform of this machine as commands open it: its database only, next to a platform that may be running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.errors import MissingExtraError, NotFoundError, OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.platform.config import PlatformConfig
    from osmosis_ai.platform.db.engine import Database
    from osmosis_ai.platform.db.tables import DbUser, DbWorkspace

T = TypeVar("T")


@contextmanager
def platform_extra() -> Iterator[None]:
    """Import parts of the platform inside the block."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError("platform", error.name or "sqlalchemy") from error


class LocalPlatform:
    """The stores of a platform that administration uses."""

    def __init__(self, config: PlatformConfig, db: Database) -> None:
        from osmosis_ai.platform.accounts import AccountStore
        from osmosis_ai.platform.clock import SystemClock
        from osmosis_ai.platform.logs import LogStore
        from osmosis_ai.platform.offboarding import Offboarding
        from osmosis_ai.platform.queue.access import WorkerAccess
        from osmosis_ai.platform.workspaces import WorkspaceStore

        self.config, self.db, self.clock = config, db, SystemClock()
        self.accounts, self.workspaces = AccountStore(db, self.clock), WorkspaceStore(db, self.clock)
        self.offboarding = Offboarding(db, self.clock, self.accounts)
        self.worker_access = WorkerAccess(db, self.clock, LogStore(db, self.clock))

    @property
    def url(self) -> str:
        """How clients reach the platform: as the one that runs says, else as it would start from here."""
        from osmosis_ai.platform.process_state import running_platform

        running = running_platform(self.config.home)
        return running.url if running is not None and running.url else self.config.base_url

    def user(self, email: str | None) -> DbUser:
        """Return the user with this address, or the only one there is."""
        if email is not None:
            return self.accounts.find_user(email)
        return self._only(self.accounts.users(), "user", "EMAIL", lambda user: user.email)

    def workspace(self, name: str | None) -> DbWorkspace:
        """Return the workspace of this name, or the only one there is."""
        if name is not None:
            return self.workspaces.find(name)
        return self._only(self.workspaces.all(), "workspace", "NAME", lambda workspace: workspace.name)

    def _only(self, found: Sequence[T], noun: str, argument: str, name_of: Callable[[T], str]) -> T:
        if not found:
            raise NotFoundError(
                f"Platform in {self.config.home} has no {noun}s.",
                hint=f"start it with `osmosis platform start`, or add one with `osmosis platform {noun} add {argument}`",
            )
        if len(found) > 1:
            names = ", ".join(map(name_of, found[:5]))
            raise OsmosisError(f"Platform has several {noun}s: {names}.", hint=f"choose one with --{noun}")
        return found[0]


@contextmanager
def local_platform(config: PlatformConfig | None = None) -> Iterator[LocalPlatform]:
    """Open the platform under ``OSMOSIS_HOME``; a running one is not disturbed."""
    with platform_extra():
        import alembic  # noqa: F401 - used later, and missed here
        import argon2  # noqa: F401

        from osmosis_ai.platform.config import from_environment
        from osmosis_ai.platform.db.engine import Database
        from osmosis_ai.platform.process_state import require_same_database
    config = config or from_environment()
    config.prepare_home()
    db = Database(config.database_url)
    try:
        # Otherwise a wrong URL would create an empty database, and changes there would be lost.
        require_same_database(config.home, db.shown)
        db.migrate()
        yield LocalPlatform(config, db)
    finally:
        db.dispose()


def fields(row: object, *names: str, **more: Any) -> dict[str, Any]:
    """Return attributes of a database row, and ``more``, with times in ISO 8601."""
    values = {name: getattr(row, name) for name in names} | more
    return {
        name: value.isoformat(timespec="seconds").replace("+00:00", "Z")
        if isinstance(value, datetime)
        else value
        for name, value in values.items()
    }
