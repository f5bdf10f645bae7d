from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, text

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.accounts import TokenRejected, bootstrap
from osmosis_ai.platform.db.tables import DbToken
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member, World


def rejection(services: PlatformServices, plain: str, **options: object) -> str:
    with pytest.raises(TokenRejected) as caught:
        services.accounts.authenticate(plain, **options)  # type: ignore[arg-type]
    return caught.value.reason


def test_a_token_says_whose_it_is_and_is_kept_as_a_hash_alone(
    services: PlatformServices, member: Member
) -> None:
    assert member.token.startswith("osm_") and len(member.token) == 47
    principal = services.accounts.authenticate(member.token)
    assert principal.user.email == "mara@fern.example"
    assert principal.token.id == member.token_id
    with services.db.session() as session:
        kept = str(session.execute(text("SELECT * FROM tokens")).all())
    assert member.token not in kept and member.token[4:] not in kept


def test_a_token_ends_at_its_expiry_and_not_before(
    services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    _, plain = services.accounts.create_token(member.user.id, ttl=timedelta(hours=1))
    clock.advance(3599)
    services.accounts.authenticate(plain)
    clock.advance(1)
    assert rejection(services, plain) == "TOKEN_EXPIRED"


def test_a_token_without_an_end_works_for_ever(
    services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    _, plain = services.accounts.create_token(member.user.id, ttl=None)
    clock.advance(20 * 365 * 86_400)
    assert services.accounts.authenticate(plain).token.expires_at is None


def test_a_revoked_token_never_works_again(services: PlatformServices, member: Member) -> None:
    services.accounts.revoke_token(member.token_id)
    services.accounts.revoke_token(member.token_id)
    assert rejection(services, member.token) == "TOKEN_REVOKED"


@pytest.mark.parametrize("plain", ["", "osm_", "osm_x", "x" * 5000, "\ud800", "osm_' OR 1=1 --"])
def test_a_token_nobody_made_is_not_known(services: PlatformServices, member: Member, plain: str) -> None:
    assert rejection(services, plain) == "TOKEN_INVALID"


def test_an_api_key_is_good_for_served_models_only(services: PlatformServices, member: Member) -> None:
    _, key = services.accounts.create_token(member.user.id, "api_key")
    assert rejection(services, key) == "TOKEN_INVALID"
    assert services.accounts.authenticate(key, kinds=("api_key",)).user.id == member.user.id


def test_a_use_is_noted_at_most_once_a_minute(
    services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    def last_use() -> object:
        with services.db.session() as session:
            return session.scalar(select(DbToken.last_used_at).where(DbToken.id == member.token_id))

    first = clock.now()
    services.accounts.authenticate(member.token)
    assert last_use() == first
    clock.advance(59)
    services.accounts.authenticate(member.token)
    assert last_use() == first
    clock.advance(1)
    services.accounts.authenticate(member.token)
    assert last_use() == clock.now()
    clock.jump(-7 * 86_400)
    services.accounts.authenticate(member.token)
    assert last_use() == clock.now()


def test_noting_a_use_never_waits_for_a_writer(services: PlatformServices, member: Member) -> None:
    import threading

    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with services.db.transaction():
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    try:
        services.accounts.authenticate(member.token)
    finally:
        release.set()
        holder.join()


def test_a_password_signs_its_user_in_and_nobody_else(services: PlatformServices) -> None:
    services.accounts.create_user("Mara@Fern.example", password="correct horse")
    services.accounts.create_user("tom@fern.example")
    signed_in = services.accounts.check_password(" mara@fern.EXAMPLE ", "correct horse")
    assert signed_in is not None and signed_in.email == "mara@fern.example"
    assert services.accounts.check_password("mara@fern.example", "correct horsE") is None
    assert services.accounts.check_password("nobody@fern.example", "correct horse") is None
    assert services.accounts.check_password("tom@fern.example", "") is None
    services.accounts.set_password("mara@fern.example", "battery staple")
    assert services.accounts.check_password("mara@fern.example", "correct horse") is None
    with services.db.session() as session:
        kept = session.scalar(text("SELECT password_hash FROM users WHERE email LIKE 'mara%'"))
    assert str(kept).startswith("$argon2id$")


def test_users_and_workspaces_are_unique_whatever_their_case(services: PlatformServices) -> None:
    services.accounts.create_user("mara@fern.example")
    with pytest.raises(ConflictError, match=r"mara@fern\.example"):
        services.accounts.create_user("MARA@fern.example")
    services.workspaces.create("Fern")
    with pytest.raises(ConflictError, match="fern"):
        services.workspaces.create("fern")
    assert services.workspaces.find("FERN").name == "Fern"


@pytest.mark.parametrize(
    "email", ["", "mara", "@fern", "mara@", "ma ra@fern", "m\n@fern", "m" * 320 + "@fern"]
)
def test_what_is_no_address_is_refused(services: PlatformServices, email: str) -> None:
    with pytest.raises(OsmosisError, match="no e-mail address"):
        services.accounts.create_user(email)


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "api", "Device", "x" * 65, "fern lab", "fé"])
def test_a_workspace_is_named_so_that_it_can_be_part_of_a_url(services: PlatformServices, name: str) -> None:
    with pytest.raises(OsmosisError, match="cannot be a workspace's name"):
        services.workspaces.create(name)


def test_a_short_password_is_refused(services: PlatformServices) -> None:
    with pytest.raises(OsmosisError, match="at least 10 characters"):
        services.accounts.create_user("mara@fern.example", password="short")


def test_a_role_can_be_changed(services: PlatformServices, member: Member) -> None:
    services.workspaces.add_member(member.workspace.id, member.user.id, "member")
    assert [(w.name, role) for w, role, _ in services.workspaces.of_user(member.user.id)] == [
        ("fern", "member")
    ]


def test_a_repository_belongs_to_one_workspace(world: World, services: PlatformServices) -> None:
    world.member()
    other = services.workspaces.create("moss")
    with pytest.raises(ConflictError, match="another workspace"):
        services.workspaces.connect_repository(other.id, "Fern/Agents", "https://git.example/x.git")


def test_connecting_again_moves_the_repository_and_forgets_what_was_synced(
    services: PlatformServices, member: Member
) -> None:
    with services.db.transaction() as session:
        session.execute(text("UPDATE repositories SET last_synced_sha = 'abc', default_branch = 'main'"))
    moved = services.workspaces.connect_repository(
        member.workspace.id, "FERN/agents", "ssh://git@host/agents.git"
    )
    assert (moved.id, moved.clone_url) == (member.repository.id, "ssh://git@host/agents.git")
    assert (moved.last_synced_sha, moved.default_branch) == (None, "main")


def test_the_first_start_makes_an_admin_once(services: PlatformServices, clock: ManualClock) -> None:
    login = bootstrap(services.db, clock)
    assert login is not None
    assert login.password not in repr(login)
    user = services.accounts.check_password(login.email, login.password)
    assert user is not None and user.is_admin and user.id == login.user_id
    assert [(w.name, role) for w, role, _ in services.workspaces.of_user(user.id)] == [("default", "owner")]
    assert bootstrap(services.db, clock) is None


def test_what_does_not_exist_is_named_with_the_command_that_makes_it(services: PlatformServices) -> None:
    with pytest.raises(NotFoundError) as caught:
        services.accounts.find_user("tom@fern.example")
    assert "platform user add tom@fern.example" in (caught.value.hint or "")
    with pytest.raises(NotFoundError) as caught:
        services.workspaces.find("moss")
    assert "platform workspace add moss" in (caught.value.hint or "")
