"""The commands of `osmosis platform` that administer it: repositories, workspaces, members, users, tokens, the secret key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, OperationResult, Timestamp
from osmosis_ai.cli.platform.local_platform import fields, local_platform
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import expanded, require_writable, write_atomic, write_new
from osmosis_ai.ui.numbers import amount

if TYPE_CHECKING:
    from datetime import datetime

    from osmosis_ai.platform.accounts import AccountStore
    from osmosis_ai.platform.db.tables import DbToken, DbUser
    from osmosis_ai.platform.offboarding import OffboardingReport
    from osmosis_ai.platform.queue.access import WorkerAccess

WorkspaceArgument = Annotated[str, typer.Argument(help="Name of the workspace.")]
WorkspaceOption = Annotated[
    str | None, typer.Option("--workspace", "-w", help="Name of the workspace (default: the only workspace).")
]
EmailArgument = Annotated[str, typer.Argument(help="Email of the user.")]
TokenIdArgument = Annotated[str, typer.Argument(help="ID of the token.")]
TokenNameOption = Annotated[str | None, typer.Option("--name", help="Description shown in the list.")]
UserOption = Annotated[
    str | None,
    typer.Option("--user", "-u", metavar="EMAIL", help="Email of the user (default: the only user)."),
]
PasswordFromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input.")
]

tokens = typer.Typer(help="Create, list and revoke API tokens.")
worker_tokens = typer.Typer(help="Create, list and revoke worker tokens.")
users = typer.Typer(help="Add, list, disable and remove users.")
workspaces = typer.Typer(help="Add and list workspaces.")
secret_keys = typer.Typer(help="Rotate the key that encrypts the platform's secrets.")
repositories = typer.Typer(help="List connected repositories.")
members = typer.Typer(help="Add and remove members of a workspace.")


def connect(
    source: Annotated[
        str, typer.Argument(metavar="PATH|URL", help="Local directory or Git URL of the repository.")
    ],
    identity: Annotated[
        str | None,
        typer.Option(metavar="OWNER/REPO", help="Name of the repository (default: derived from its origin)."),
    ] = None,
    workspace: WorkspaceOption = None,
    branch: Annotated[
        str | None, typer.Option(help="Branch that runs use (default: the repository's default branch).")
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Connect the repository even if it cannot be cloned yet.")
    ] = False,
) -> OperationResult:
    """Connect a Git repository to a workspace.

    `osmosis eval submit` then works in its checkouts.

    Examples:
        osmosis platform connect .
        osmosis platform connect https://git.example.org/team/agents.git
    """
    from osmosis_ai.workspace.git import without_credentials

    located = _located(source)
    sent = _identity_of(located.origin, required=identity is None)
    with local_platform() as platform:
        home = platform.workspace(workspace)
        if not no_check:
            _require_clone(platform.config.git_dir, identity or sent, located.clone_url, branch)
        repository = platform.workspaces.connect_repository(
            home.id,
            identity or sent,
            located.clone_url,
            also_known_as=[sent] if sent else [],
            default_branch=branch,
        )
        identities = platform.workspaces.identities(repository.id)
    if sent and sent not in identities:
        current().warn(
            f"{sent}, the identity of clones of {without_credentials(located.origin)}, belongs to another connected "
            "repository."
        )
    return OperationResult(
        operation="platform.connect",
        message=f"Connected {repository.identity} to {home.name}; runs clone {repository.clone_url}.",
        resource=fields(
            repository,
            *("id", "identity", "clone_url", "default_branch"),
            workspace=home.name,
            identities=identities,
        ),
        next_steps=located.next_steps,
    )


def _require_clone(git_dir: Path, identity: str, clone_url: str, branch: str | None) -> None:
    """Ask the repository what it has."""
    from osmosis_ai.config.issues import closest
    from osmosis_ai.platform.gitsync.mirror import MirrorStore
    from osmosis_ai.platform.workspaces import checked_clone_url

    # A password in the URL is refused before it could reach Git.
    clone_url = checked_clone_url(clone_url)
    mirrors = MirrorStore(git_dir)
    try:
        with current().status(f"Checking {clone_url}"):
            refs = mirrors.probe(identity, clone_url)
    except OsmosisError as error:
        error.hint = "; ".join(filter(None, (error.hint, "or connect it without a check: --no-check")))
        raise
    finally:
        mirrors.close()
    branches = [name.removeprefix("refs/heads/") for name in refs.commits if name.startswith("refs/heads/")]
    if branch is not None and branch not in branches:
        near = closest(branch, branches)
        hint = f"did you mean {near}?" if near else f"it has {', '.join(sorted(branches)[:5]) or 'none yet'}"
        raise NotFoundError(f"{clone_url} has no branch '{branch}'.", hint=hint)
    if not branches:
        current().warn(f"{clone_url} has no commits yet; runs need at least one.")


class _Located(NamedTuple):
    """The URL to clone, the origin of its clients, and hints for the user."""

    clone_url: str
    origin: str
    next_steps: Sequence[str] = ()


def _located(source: str) -> _Located:
    from osmosis_ai.workspace.git import read_origin, without_credentials, worktree_root

    path = expanded(source)
    if "://" in source or not path.exists():
        if "://" not in source and ":" not in source:
            raise NotFoundError(
                f"Directory does not exist: {source}.", hint="use the path or URL of a Git repository"
            )
        return _Located(source, source)
    root = worktree_root(path)
    if root is None:
        bare = path.resolve()
        if not ((bare / "HEAD").is_file() and (bare / "objects").is_dir()):
            raise NotFoundError(f"{source} is not a Git repository.", hint="git init")
        return _Located(str(bare), str(bare))
    here, committed = str(root), "Runs use what is committed there; nothing needs to be pushed."
    origin = read_origin(root)
    if origin is None:
        own = f"git -C {quote(here)} remote add origin {quote(here)}"
        return _Located(
            here, here, [committed, f"Its commands need an origin. To use the repository itself: {own}"]
        )
    is_path = "://" not in origin and (root / origin).exists()
    absolute = str((root / origin).resolve()) if is_path else origin
    if _identity_of(absolute, required=False) == _identity_of(here, required=True):
        return _Located(here, here, [committed])
    pushed = f"osmosis platform connect {quote(without_credentials(absolute))}"
    return _Located(here, absolute, [committed, f"To use what is pushed to its origin instead: {pushed}"])


def _identity_of(origin: str, *, required: bool) -> str:
    """Return the identity that clients with this origin send; "" if there is none and none is required."""
    from osmosis_ai.api.git_identity import identify_origin

    try:
        return identify_origin(origin).identity
    except OsmosisError:
        if required:
            raise
        return ""


def disconnect(
    repository: Annotated[
        str, typer.Argument(metavar="IDENTITY|URL|PATH", help="Identity or clone URL of the repository.")
    ],
    yes: YesOption = False,
) -> OperationResult:
    """Disconnect a Git repository from its workspace.

    Runs, datasets and models are kept. New runs cannot use the repository.

    Examples:
        osmosis platform disconnect fern/agents --yes
    """
    from osmosis_ai.platform.gitsync.mirror import MirrorStore

    with local_platform() as platform:
        found = platform.workspaces.find_repository(repository)
        warnings = []
        if waiting := platform.workspaces.waiting_runs(found.id):
            counted = amount(len(waiting), "pending run")
            warnings = [f"{counted} will fail without its code: {', '.join(waiting[:5])}."]
            current().warn(warnings[0])
        current().confirm(f"Disconnect {found.identity}?", yes=yes, warnings=warnings)
        platform.workspaces.disconnect_repository(found.id)
        MirrorStore(platform.config.git_dir).remove(found)
    return OperationResult(
        operation="platform.disconnect",
        message=f"Disconnected {found.identity}. Its runs, datasets and models are kept.",
        resource=fields(found, "id", "identity", "clone_url"),
        next_steps=[f"Connect it again: osmosis platform connect {found.clone_url}"],
    )


@repositories.command("list")
def list_repositories(
    workspace: Annotated[
        str | None, typer.Option("--workspace", "-w", help="List only repositories of this workspace.")
    ] = None,
) -> ListResult:
    """List connected repositories and their last fetch.

    Examples:
        osmosis platform repository list --workspace default
    """
    with local_platform() as platform:
        named = platform.workspaces.all() if workspace is None else [platform.workspaces.find(workspace)]
        items = [
            fields(
                repository,
                *("id", "identity", "clone_url", "default_branch"),
                *("last_synced_sha", "last_synced_at", "sync_error"),
                workspace=home.name,
                identities=platform.workspaces.identities(repository.id),
                connected_at=repository.created_at,
            )
            for home in named
            for repository in platform.workspaces.repositories(home.id)
        ]
    return ListResult(
        title="Repositories",
        items=items,
        columns=[
            Column("Identity", "identity", keep=True),
            Column("Workspace", "workspace"),
            Column("Clone URL", "clone_url"),
            Column("Branch", value=lambda item: item["default_branch"] or "(default)"),
            Column("Last fetched", value=_fetched),
        ],
        hints=[] if items else ["Connect one: osmosis platform connect PATH|URL"],
    )


def _fetched(item: Any) -> str | None:
    if item["sync_error"]:
        return f"failed: {item['sync_error']}"
    if item["last_synced_sha"] is None:
        return None
    return f"{item['last_synced_sha'][:8]} at {item['last_synced_at']}"


@workspaces.command("add")
def add_workspace(
    name: Annotated[str, typer.Argument(help="Name: letters, digits, `-`, `_` and `.`.")],
    owner: Annotated[
        str | None, typer.Option(metavar="EMAIL", help="Email of the owner (default: the only user).")
    ] = None,
) -> OperationResult:
    """Add a workspace.

    Examples:
        osmosis platform workspace add team-agents --owner ada@example.org
    """
    with local_platform() as platform:
        from osmosis_ai.platform.isolation import require_one_workspace

        user = platform.user(owner)
        require_one_workspace(platform.config, len(platform.workspaces.all()))
        workspace = platform.workspaces.create(name)
        platform.workspaces.add_member(workspace.id, user.id, "owner")
    return OperationResult(
        operation="platform.workspace.add",
        message=f"Added the workspace {workspace.name}, owned by {user.email}.",
        resource={"id": workspace.id, "name": workspace.name, "owner": user.email},
        next_steps=[f"Connect its repository: osmosis platform connect URL --workspace {workspace.name}"],
    )


@workspaces.command("list")
def list_workspaces() -> ListResult:
    """List workspaces with their members and repositories.

    Examples:
        osmosis platform workspace list
    """
    with local_platform() as platform:
        items = [
            fields(
                workspace,
                *("id", "name", "created_at"),
                members=[
                    {"email": user.email, "role": role}
                    for user, role in platform.workspaces.members(workspace.id)
                ],
                repositories=[
                    fields(repository, "identity", "clone_url")
                    for repository in platform.workspaces.repositories(workspace.id)
                ],
            )
            for workspace in platform.workspaces.all()
        ]
    return ListResult(
        title="Workspaces",
        items=items,
        columns=[
            Column("Name", "name", keep=True),
            Column("Members", value=lambda item: _listed("{email} ({role})", item["members"])),
            Column("Repositories", value=lambda item: _listed("{identity}", item["repositories"])),
        ],
    )


def _listed(template: str, items: Sequence[Mapping[str, Any]]) -> str | None:
    return ", ".join(template.format(**item) for item in items) or None


@members.command("add")
def add_member(
    workspace: WorkspaceArgument,
    email: EmailArgument,
    role: Annotated[
        Literal["owner", "admin", "member"], typer.Option(help="Role of the user in the workspace.")
    ] = "member",
) -> OperationResult:
    """Add a user to a workspace or change their role.

    Examples:
        osmosis platform member add team-agents grace@example.org
    """
    with local_platform() as platform:
        home, user = platform.workspaces.find(workspace), platform.accounts.find_user(email)
        platform.workspaces.add_member(home.id, user.id, role)
    return OperationResult(
        operation="platform.member.add",
        message=f"{user.email} now has the role {role} in {home.name}.",
        resource={"workspace": home.name, "email": user.email, "role": role},
    )


@members.command("remove")
def remove_member(
    workspace: WorkspaceArgument, email: EmailArgument, yes: YesOption = False
) -> OperationResult:
    """Remove a user from a workspace.

    Everything the user created in the workspace is kept.

    Examples:
        osmosis platform member remove team-agents grace@example.org
    """
    with local_platform() as platform:
        home, user = platform.workspaces.find(workspace), platform.accounts.find_user(email)
        current().confirm(f"Remove {user.email} from {home.name}?", yes=yes)
        platform.workspaces.remove_member(home.id, user.id)
    return OperationResult(
        operation="platform.member.remove",
        message=f"Removed {user.email} from {home.name}.",
        resource={"workspace": home.name, "email": user.email},
    )


@users.command("add")
def add_user(
    email: EmailArgument,
    name: Annotated[str | None, typer.Option(help="Name of the user.")] = None,
    workspace: Annotated[
        str | None, typer.Option("--workspace", "-w", help="Add the user to this workspace.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Make the user an administrator.")] = False,
    password_stdin: PasswordFromStdin = False,
) -> OperationResult:
    """Add a user.

    Without --password-stdin, a password is generated and printed once.

    Examples:
        osmosis platform user add ada@example.org --name Ada --workspace team-agents
    """
    password, made = _password(password_stdin)
    with local_platform() as platform:
        home = platform.workspaces.find(workspace) if workspace is not None else None
        user = platform.accounts.create_user(email, name=name, password=password, is_admin=admin)
        if home is not None:
            platform.workspaces.add_member(home.id, user.id)
        url = platform.url
    steps = [f"Log in as the user: osmosis --platform {url} login (approve it at {url}/device)"]
    if home is None:
        steps.insert(0, f"Add the user to a workspace: osmosis platform member add WORKSPACE {user.email}")
    added = f"Added {user.email}."
    return OperationResult(
        operation="platform.user.add",
        message=added,
        shown=f"{added} Password: {password}" if made else None,
        resource=fields(
            user,
            *("id", "email", "name", "is_admin"),
            workspace=home.name if home is not None else None,
            **({"password": password} if made else {}),
        ),
        next_steps=steps,
    )


@users.command("list")
def list_users() -> ListResult:
    """List users.

    Examples:
        osmosis platform user list
    """
    with local_platform() as platform:
        items = [
            fields(
                user,
                *("id", "email", "name", "is_admin", "created_at"),
                status="active" if user.disabled_at is None else "disabled",
                workspaces=[home.name for home, _, _ in platform.workspaces.of_user(user.id)],
            )
            for user in platform.accounts.users()
        ]
    return ListResult(
        title="Users",
        items=items,
        columns=[
            Column("Email", "email", keep=True),
            Column("Name", "name"),
            Column("Admin", "is_admin"),
            Column("Status", "status"),
            Column("Workspaces", "workspaces"),
        ],
    )


@users.command("password")
def change_password(
    email: EmailArgument,
    password_stdin: PasswordFromStdin = False,
    revoke_tokens: Annotated[
        bool, typer.Option("--revoke-tokens", help="Also revoke the user's tokens and API keys.")
    ] = False,
) -> OperationResult:
    """Set a new password for a user.

    This ends the user's sessions. Tokens and API keys stay valid unless you add --revoke-tokens.
    Without --password-stdin, a password is generated and printed once.

    Examples:
        osmosis platform user password ada@example.org
    """
    text, made = _password(password_stdin)
    with local_platform() as platform:
        ended = platform.accounts.set_password(email, text, revoke_tokens=revoke_tokens)
    kinds = "sessions, tokens and keys" if revoke_tokens else "sessions"
    changed = f"Changed the password of {email}; {ended} {kinds} ended."
    return OperationResult(
        operation="platform.user.password",
        message=changed,
        shown=f"{changed} Password: {text}" if made else None,
        resource={"email": email, "ended": ended, **({"password": text} if made else {})},
    )


@users.command("disable")
def disable_user(
    email: EmailArgument,
    stop_runs: Annotated[bool, typer.Option("--stop-runs", help="Also stop the user's open runs.")] = False,
    yes: YesOption = False,
) -> OperationResult:
    """Disable a user's password, sessions, tokens and API keys.

    `osmosis platform user enable` restores access.

    Examples:
        osmosis platform user disable ada@example.org --stop-runs
    """
    with local_platform() as platform:
        user = platform.accounts.find_user(email)
        current().confirm(f"Disable {user.email}?", yes=yes)
        done = platform.offboarding.disable(email, stop_runs=stop_runs)
    message = f"Disabled {user.email}." if done.changed else f"{user.email} is already disabled."
    steps = [f"Restore access: osmosis platform user enable {user.email}"]
    if done.still_open:
        steps.insert(0, f"Open runs continue (stop them with --stop-runs): {', '.join(done.still_open)}")
    return _changed_user("disable", message, done, steps)


@users.command("enable")
def enable_user(email: EmailArgument) -> OperationResult:
    """Enable a disabled user.

    The user's password, tokens and API keys work again.

    Examples:
        osmosis platform user enable ada@example.org
    """
    with local_platform() as platform:
        done = platform.offboarding.enable(email)
    email = done.user.email
    return _changed_user("enable", f"Enabled {email}." if done.changed else f"{email} is not disabled.", done)


@users.command("remove")
def remove_user(email: EmailArgument, yes: YesOption = False) -> OperationResult:
    """Remove a user and stop their open runs.

    Their tokens, memberships and personal secrets are deleted. Datasets, runs, adapters and workspace secrets are kept.
    The last owner of a workspace cannot be removed.

    Examples:
        osmosis platform user remove ada@example.org
    """
    with local_platform() as platform:
        user = platform.accounts.find_user(email)
        current().confirm(f"Remove {user.email} permanently? Their open runs stop.", yes=yes)
        done = platform.offboarding.remove(email)
    return _changed_user("remove", f"Removed {user.email}.", done)


def _changed_user(
    verb: str, message: str, done: OffboardingReport, steps: Sequence[str] = ()
) -> OperationResult:
    counted = [
        f"{done.sessions} sessions and tokens ended" if done.sessions else "",
        f"{amount(done.personal_secrets, 'personal secret')} deleted" if done.personal_secrets else "",
        f"stopped: {', '.join(done.stopped)}" if done.stopped else "",
    ]
    effects = "; ".join(filter(None, counted))
    return OperationResult(
        operation=f"platform.user.{verb}",
        status="success" if done.changed else "noop",
        message=message + (f" ({effects})" if effects else ""),
        resource={
            "id": done.user.id,
            "email": done.user.email,
            "ended": done.sessions,
            "stopped_runs": list(done.stopped),
            "open_runs": list(done.still_open),
            "deleted_personal_secrets": done.personal_secrets,
        },
        next_steps=steps,
    )


def _password(from_stdin: bool) -> tuple[str, bool]:
    """Return a password, and whether it was generated here."""
    import secrets

    if from_stdin:
        return current().stdin.readline().rstrip("\r\n"), False
    return secrets.token_urlsafe(12), True


def _token_list(
    title: str, items: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, everything: bool, gone: str
) -> ListResult:
    shown = [item for item in items if everything or item["status"] in ("active", "disabled")]
    hidden = len(items) - len(shown)
    used = Column("Last used", "last_used_at")
    return ListResult(
        title=title,
        items=shown,
        columns=[Column("ID", "id", keep=True), *columns, used],
        hints=[f"{hidden} {gone}: add --all to see them."] if hidden else [],
    )


def _revoke_token(
    noun: Literal["token", "worker-token"], token_id: str, *, loss: str, yes: bool
) -> OperationResult:
    """Confirm and revoke a token; a second time changes nothing."""
    with local_platform() as platform:
        store: AccountStore | WorkerAccess = platform.accounts if noun == "token" else platform.worker_access
        is_new = store.find_token(token_id).revoked_at is None
        if is_new:
            current().confirm(f"Revoke {token_id}? {loss}", yes=yes)
        token = store.revoke_token(token_id)
    return OperationResult(
        operation=f"platform.{noun}.revoke",
        status="success" if is_new else "noop",
        message=f"Revoked {token_id}." if is_new else f"{token_id} is already revoked.",
        resource=fields(token, "id", "revoked_at"),
    )


@tokens.command("create")
def create_token(
    user: UserOption = None,
    kind: Annotated[
        Literal["cli", "api_key"],
        typer.Option(help="`cli` for commands and the API, `api_key` for calls of deployed models."),
    ] = "cli",
    name: TokenNameOption = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the token expires.")] = 90,
    no_expiry: Annotated[
        bool, typer.Option("--no-expiry", help="Create a token that does not expire.")
    ] = False,
    workspace: Annotated[
        str | None, typer.Option("--workspace", "-w", help="Restrict the token to this workspace.")
    ] = None,
) -> OperationResult:
    """Create a token and print it.

    The token is printed only once. The platform stores a hash.

    Examples:
        osmosis platform token create --user ada@example.org --name ci --days 30
    """
    with local_platform() as platform:
        owner = platform.user(user)
        if owner.disabled_at is not None:
            raise ConflictError(
                f"{owner.email} is disabled.", hint=f"osmosis platform user enable {owner.email}"
            )
        home = platform.workspaces.find(workspace) if workspace is not None else None
        if home is not None:
            platform.workspaces.require_member(home, owner)
        token, plain = platform.accounts.create_token(
            owner.id,
            kind,
            name=name,
            ttl=None if no_expiry else timedelta(days=days),
            workspace_id=home.id if home is not None else None,
        )
        url = platform.url
    expiry = f"expires {formats.date(token.expires_at)}" if token.expires_at else "does not expire"
    current().note(f"Token {token.id} of {owner.email} ({expiry}). It is not shown again.")
    return OperationResult(
        operation="platform.token.create",
        message=f"Created token {token.id} of {owner.email}.",
        shown=plain,
        resource=fields(
            token,
            *("id", "kind", "name", "expires_at"),
            token=plain,
            user=owner.email,
            workspace=home.name if home is not None else None,
            platform_url=url,
        ),
    )


@tokens.command("list")
def list_tokens(
    user: UserOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show expired and revoked tokens too.")] = False,
) -> ListResult:
    """List tokens, newest first.

    Only hashes are stored, so the tokens cannot be printed.

    Examples:
        osmosis platform token list
    """
    with local_platform() as platform:
        owner_id = platform.accounts.find_user(user).id if user is not None else None
        now = platform.clock.now()
        names = {workspace.id: workspace.name for workspace in platform.workspaces.all()}
        items = [
            fields(
                token,
                *("id", "kind", "name", "created_at", "expires_at", "last_used_at"),
                user=owner.email,
                workspace=names.get(token.workspace_id or ""),
                status=_token_status(token, owner, now),
            )
            for token, owner in platform.accounts.tokens(user_id=owner_id)
        ]
    columns = [
        Column("Kind", "kind"),
        Column("Name", "name"),
        Column("User", "user"),
        Column("Status", "status"),
        Column(
            "Expires", value=lambda item: Timestamp(item["expires_at"]) if item["expires_at"] else "never"
        ),
    ]
    return _token_list("Tokens", items, columns, everything=everything, gone="expired or revoked")


def _token_status(token: DbToken, owner: DbUser, now: datetime) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is not None and token.expires_at <= now:
        return "expired"
    return "active" if owner.disabled_at is None else "disabled"


@tokens.command("revoke")
def revoke_user_token(token_id: TokenIdArgument, yes: YesOption = False) -> OperationResult:
    """Revoke a token permanently.

    Examples:
        osmosis platform token revoke 3f2a9c10
    """
    return _revoke_token("token", token_id, loss="It no longer works.", yes=yes)


@worker_tokens.command("create")
def create_worker_token(
    pool: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Pool of runs that the token is valid for ([advanced.execution] in a config).",
        ),
    ],
    workspace: Annotated[
        list[str] | None,
        typer.Option("--workspace", "-w", help="Restrict the token to runs of this workspace; repeatable."),
    ] = None,
    name: TokenNameOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the token into a file that only you can read, and do not print it."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --output.")] = False,
) -> OperationResult:
    """Create a token for the workers of a pool.

    Without --output, the token is printed only once.

    The token is valid only for `osmosis platform worker`, until it is revoked. A machine with the token
    receives the secrets of the runs that it executes.

    Examples:
        osmosis platform worker-token create --pool gpu --output gpu-worker.token
        osmosis platform worker-token create --pool gpu --workspace team-agents --name basement
    """
    if output == Path("-"):
        raise typer.BadParameter("standard output is the default.", param_hint="'--output'")
    with local_platform() as platform:
        homes = [platform.workspaces.find(named) for named in dict.fromkeys(workspace or [])]
        if output is not None:
            _require_place(output, force)  # before there is a token
        token, plain = platform.worker_access.create_token(
            pool, name=name, workspace_ids=[home.id for home in homes]
        )
        if output is not None:
            try:
                (write_atomic if force else write_new)(output, plain + "\n")
            except OSError as error:
                # A token that could not be written is worth nothing.
                platform.worker_access.revoke_token(token.id)
                raise _unwritable(output, error) from error
        url = platform.url
    scope = f" of {', '.join(home.name for home in homes)}" if homes else ""
    created = f"Created worker token {token.id} for the pool {token.pool}{scope}"
    if output is None:
        current().note(f"{created}. It is not shown again.")
    return OperationResult(
        operation="platform.worker-token.create",
        message=f"{created}." if output is None else f"{created} in {output}.",
        shown=plain if output is None else None,
        resource=fields(
            token,
            *("id", "pool", "name"),
            workspaces=[home.name for home in homes] or None,
            platform_url=url,
            **({"token": plain} if output is None else {"path": str(output)}),
        ),
        # A printed token is the only line on stdout.
        next_steps=[
            f"On the worker's machine: osmosis platform worker --url {url} --pool {token.pool} "
            f"--token-file {output.name}"
        ]
        if output is not None
        else [],
    )


@worker_tokens.command("list")
def list_worker_tokens(
    everything: Annotated[bool, typer.Option("--all", help="Show revoked tokens too.")] = False,
) -> ListResult:
    """List worker tokens, newest first.

    Only hashes are stored, so the tokens cannot be printed.

    Examples:
        osmosis platform worker-token list
    """
    with local_platform() as platform:
        names = {workspace.id: workspace.name for workspace in platform.workspaces.all()}
        items = [
            fields(
                token,
                *("id", "pool", "name", "created_at", "last_used_at"),
                workspaces=token.workspace_ids and [names.get(each, each) for each in token.workspace_ids],
                status="revoked" if token.revoked_at is not None else "active",
            )
            for token in platform.worker_access.tokens()
        ]
    columns = [
        Column("Pool", "pool"),
        Column("Name", "name"),
        Column("Workspaces", value=lambda item: ", ".join(item["workspaces"] or ["all"])),
        Column("Status", "status"),
        Column("Created", "created_at"),
    ]
    return _token_list("Worker tokens", items, columns, everything=everything, gone="revoked")


@worker_tokens.command("revoke")
def revoke_worker_token(token_id: TokenIdArgument, yes: YesOption = False) -> OperationResult:
    """Revoke a worker token permanently.

    Its workers release their runs, and other workers continue them.

    Examples:
        osmosis platform worker-token revoke wkt_3f2a9c10
    """
    return _revoke_token("worker-token", token_id, loss="Its workers stop.", yes=yes)


def _require_place(output: Path, force: bool) -> None:
    if output.is_dir():
        raise OsmosisError(
            f"{output} is a directory.", hint=f"name a file in it: --output {output / 'worker.token'}"
        )
    try:
        if output.exists() and not force:
            raise FileExistsError
        require_writable(output)
    except OSError as error:
        raise _unwritable(output, error) from error


def _unwritable(output: Path, error: OSError) -> OsmosisError:
    if isinstance(error, FileExistsError):
        return ConflictError(f"{output} exists.", hint="choose another file, or replace it with --force")
    return OsmosisError(f"{output} cannot be written: {error.strerror or error}.")


@secret_keys.command("rotate")
def rotate_secret_key() -> OperationResult:
    """Encrypt all secrets with a new key.

    The platform may be running.

    If the command is interrupted, every secret stays readable. Run it again to continue. The former key is kept for
    one day for backups in progress.

    Examples:
        osmosis platform secret-key rotate
    """
    with local_platform() as platform:
        from osmosis_ai.platform import vault

        done = vault.rotate_secret_key(platform.db, vault.open_vault(platform.config), platform.clock)
    if done.damaged:
        current().warn(
            f"Secrets could not be decrypted and are unchanged: {', '.join(done.damaged[:5])}. Set them again.",
            code="SECRETS_DAMAGED",
        )
    return OperationResult(
        operation="platform.secret-key.rotate",
        message=f"Encrypted {amount(done.resealed, 'secret')} with a new key.",
        resource={"resealed": done.resealed, "forgotten_keys": done.forgotten, "damaged": list(done.damaged)},
        next_steps=["Earlier backups contain the former key: make a new one, or keep them safe"],
    )
