"""Guessing passwords is slowed down, and locks nobody out but the guesser."""

from __future__ import annotations

import pytest

from osmosis_ai.platform import sign_in
from osmosis_ai.platform.db.tables import DbUser
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import SignIns, TooManyAttempts, network_of
from tests.platform.conftest import ManualClock

HOME, OFFICE, STRANGER = "192.0.2.7", "198.51.100.4", "203.0.113.9"


class _Accounts:
    """Everybody's password is their address: Argon2 is tested elsewhere and slow on purpose."""

    def check_password(self, email: str, password: str) -> DbUser | None:
        return DbUser(email=email) if password == email else None


@pytest.fixture
def sign_ins(services: PlatformServices, clock: ManualClock) -> SignIns:
    return SignIns(_Accounts(), clock)  # type: ignore[arg-type]


def outcome(sign_ins: SignIns, email: str, password: str, source: str) -> str:
    try:
        return "in" if sign_ins.check(email, password, source=source) else "wrong"
    except TooManyAttempts:
        return "wait"


def test_a_stranger_who_guesses_at_an_account_does_not_lock_its_owner_out(sign_ins: SignIns) -> None:
    tried = [outcome(sign_ins, "mara@fern.example", "guess", STRANGER) for _ in range(30)]
    assert tried == ["wrong"] * 10 + ["wait"] * 20
    assert outcome(sign_ins, "MARA@fern.example ", "mara@fern.example", STRANGER) == "wait"
    assert outcome(sign_ins, "mara@fern.example", "mara@fern.example", HOME) == "in"


def test_many_strangers_do_not_lock_an_owner_out_either(sign_ins: SignIns) -> None:
    for number in range(200):
        outcome(sign_ins, "mara@fern.example", "guess", f"203.0.113.{number}")
    assert outcome(sign_ins, "mara@fern.example", "mara@fern.example", HOME) == "in"


def test_a_stranger_beside_people_keeps_none_of_them_out_who_has_signed_in_there(
    sign_ins: SignIns, clock: ManualClock
) -> None:
    assert outcome(sign_ins, "mara@fern.example", "mara@fern.example", OFFICE) == "in"
    tried = [outcome(sign_ins, f"user{number}@fern.example", "guess", OFFICE) for number in range(80)]
    assert tried == ["wrong"] * 50 + ["wait"] * 30
    assert outcome(sign_ins, "mara@fern.example", "mara@fern.example", OFFICE) == "in"
    assert outcome(sign_ins, "ivo@fern.example", "ivo@fern.example", OFFICE) == "wait"
    assert outcome(sign_ins, "ivo@fern.example", "ivo@fern.example", HOME) == "in"
    clock.advance(15 * 60)
    assert outcome(sign_ins, "ivo@fern.example", "ivo@fern.example", OFFICE) == "in"


def test_an_account_of_ones_own_does_not_make_guessing_cheaper(sign_ins: SignIns) -> None:
    tried = []
    for number in range(80):
        outcome(sign_ins, "eve@fern.example", "eve@fern.example", STRANGER)
        tried.append(outcome(sign_ins, f"user{number}@fern.example", "guess", STRANGER))
    assert tried == ["wrong"] * 50 + ["wait"] * 30


def test_a_network_of_ipv6_is_one_source(sign_ins: SignIns) -> None:
    tried = [outcome(sign_ins, "mara@fern.example", "guess", f"2001:db8:1:2::{n:x}") for n in range(1, 13)]
    assert tried == ["wrong"] * 10 + ["wait"] * 2
    assert network_of("2001:db8:1:3::1") != network_of("2001:db8:1:2::1")
    assert network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("unknown") == "unknown"


def test_what_strangers_can_make_the_platform_remember_is_bounded(
    sign_ins: SignIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "_MAX_KEYS", 100)
    for number in range(1000):
        outcome(sign_ins, f"user{number}@fern.example", "guess", f"10.0.{number // 250}.{number % 250}")
    limits = (sign_ins._by_account, sign_ins._by_source)
    assert [len(limit._failures) for limit in limits] == [100, 100]
