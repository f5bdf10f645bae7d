"""The secret key is rotated while the platform runs, and whatever interrupts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from sqlalchemy import func, select, text

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.tables import DbSecret
from osmosis_ai.platform.key_rotation import rotate_secret_key
from osmosis_ai.platform.secrets import resolve_secrets
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.vault import Vault, key_id_of
from tests.platform.conftest import ManualClock, Member

NAMES = [f"KEY_{number}" for number in range(8)]
VALUES = {name: f"sk-of-{name}" for name in NAMES}


@pytest.fixture
def stored(services: PlatformServices, member: Member) -> None:
    for name, value in VALUES.items():
        services.secrets.put(member.workspace.id, member.user.id, name, value, "workspace")


def resolved(services: PlatformServices, member: Member, vault: Vault) -> dict[str, str]:
    found = resolve_secrets(services.db, vault, member.workspace.id, member.user.id, NAMES)
    return {name: secret.value for name, secret in found.items()}


def keys_in_database(services: PlatformServices) -> set[bytes]:
    with services.db.session() as session:
        return {key_id_of(sealed) for sealed in session.scalars(select(DbSecret.sealed))}


@pytest.mark.usefixtures("stored")
def test_every_secret_has_the_new_key_and_the_platform_that_runs_goes_on(
    services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    running, former = services.vault, keys_in_database(services)
    done = rotate_secret_key(services.db, Vault(running.key_file), clock)

    assert (done.resealed, done.forgotten, done.damaged) == (len(NAMES), 0, [])
    assert not former & keys_in_database(services)
    assert resolved(services, member, running) == VALUES
    services.secrets.put(member.workspace.id, member.user.id, NAMES[0], "sk-new", "workspace")
    assert len(keys_in_database(services)) == 1
    assert resolved(services, member, Vault(running.key_file)) == {**VALUES, NAMES[0]: "sk-new"}


@pytest.mark.usefixtures("stored")
def test_a_backup_taken_before_opens_with_the_key_file_of_after_and_a_day_later_the_key_goes(
    services: PlatformServices, clock: ManualClock
) -> None:
    vault = services.vault
    with services.db.session() as session:
        secret = session.scalars(select(DbSecret)).first()
    assert secret is not None
    rotate_secret_key(services.db, vault, clock)
    assert Vault(vault.key_file).open(secret.sealed, context=f"secrets:{secret.id}").startswith(b"sk-of-")

    clock.advance(25 * 3600)
    assert rotate_secret_key(services.db, vault, clock).forgotten == 1
    assert key_id_of(secret.sealed).hex() not in vault.key_file.read_text()


@pytest.mark.usefixtures("stored")
def test_what_cannot_be_opened_is_named_and_its_key_is_kept(
    services: PlatformServices, clock: ManualClock
) -> None:
    with services.db.transaction() as session:
        secret = session.scalars(select(DbSecret).order_by(DbSecret.id)).all()[3]
        secret.sealed = secret.sealed[:-1] + bytes([secret.sealed[-1] ^ 1])
    kept = key_id_of(secret.sealed).hex()
    for _ in range(2):
        done = rotate_secret_key(services.db, services.vault, clock)
        assert done.damaged == [f"secrets:{secret.id}"]
        clock.advance(25 * 3600)
    assert kept in services.vault.key_file.read_text()


@pytest.mark.integration
@pytest.mark.usefixtures("stored")
def test_a_rotation_that_is_killed_half_way_has_lost_nothing_and_is_repeated(
    services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    if not services.db.is_sqlite:
        pytest.skip("the child opens a file")
    killed = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from osmosis_ai.platform import key_rotation
        from osmosis_ai.platform.clock import SystemClock
        from osmosis_ai.platform.db.engine import Database
        from osmosis_ai.platform.vault import Vault

        class Killed(Vault):
            sealed = 0
            def seal(self, plaintext, *, context):
                self.sealed += 1
                if self.sealed == 6:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().seal(plaintext, context=context)

        key_rotation._BATCH = 2
        db = Database("sqlite:///{services.db.sqlite_path}")
        key_rotation.rotate_secret_key(db, Killed(Path({str(services.vault.key_file)!r})), SystemClock())
        """
    )
    child = subprocess.run([sys.executable, "-c", killed], env=os.environ, check=False, timeout=120)
    assert child.returncode == -signal.SIGKILL

    assert len(keys_in_database(services)) == 2
    assert resolved(services, member, Vault(services.vault.key_file)) == VALUES
    done = rotate_secret_key(services.db, services.vault, clock)
    assert done.resealed == len(NAMES)
    assert len(keys_in_database(services)) == 1
    assert resolved(services, member, services.vault) == VALUES


@pytest.mark.usefixtures("stored")
def test_two_rotations_at_once_are_one(services: PlatformServices, clock: ManualClock) -> None:
    from filelock import FileLock

    with (
        FileLock(f"{services.vault.key_file}.rotation.lock"),
        pytest.raises(ConflictError, match="another rotation"),
    ):
        rotate_secret_key(services.db, services.vault, clock)


def test_values_given_for_one_run_are_sealed_anew_too(
    services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    from osmosis_ai.platform.runs.submit.submitter import secrets_context
    from tests.platform.test_offboarding import open_run, run_of

    open_run(services, member, "waiting", "pending")
    sealed = services.vault.seal(b"{}", context=secrets_context("run_waiting"))
    with services.db.transaction() as session:
        session.execute(text("UPDATE runs SET sealed_secrets = :sealed"), {"sealed": sealed})
    assert rotate_secret_key(services.db, services.vault, clock).resealed == 1
    fresh = run_of(services, "waiting").sealed_secrets
    assert fresh is not None and key_id_of(fresh) != key_id_of(sealed)
    assert services.vault.open(fresh, context=secrets_context("run_waiting")) == b"{}"
    with services.db.session() as session:
        assert session.scalar(select(func.count()).select_from(DbSecret)) == 0
