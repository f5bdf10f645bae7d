from __future__ import annotations

import json
import stat
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.platform import vault as vault_module
from osmosis_ai.platform.vault import Vault, VaultError, key_id_of

CANARY = b"canary-6f1d"
NOW = datetime(2026, 11, 2, 9, 30, tzinfo=timezone.utc)
DAY = timedelta(days=1)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "vault.json"


def test_what_was_sealed_opens_again_also_in_another_process(key_file: Path) -> None:
    sealed = Vault(key_file).seal(CANARY, context="secrets:sec_1")

    assert CANARY not in sealed
    assert Vault(key_file).open(sealed, context="secrets:sec_1") == CANARY


def test_a_sealed_value_does_not_open_on_another_row(key_file: Path) -> None:
    vault = Vault(key_file)
    sealed = vault.seal(CANARY, context="secrets:sec_1")

    with pytest.raises(VaultError, match="`secrets:sec_2` is damaged, or was made for another row"):
        vault.open(sealed, context="secrets:sec_2")


@pytest.mark.parametrize("position", [0, 3, 12, -1])
def test_an_altered_value_does_not_open(key_file: Path, position: int) -> None:
    vault = Vault(key_file)
    sealed = bytearray(vault.seal(CANARY, context="c"))
    sealed[position] ^= 1

    with pytest.raises(VaultError) as caught:
        vault.open(bytes(sealed), context="c")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("rubbish", [b"", b"\x01", b"\x01" + b"k" * 15, b"plain text of an older day"])
def test_what_is_no_sealed_value_is_refused_in_a_sentence(key_file: Path, rubbish: bytes) -> None:
    with pytest.raises(VaultError, match="`c` is damaged"):
        Vault(key_file).open(rubbish, context="c")


def test_the_same_value_never_looks_the_same_twice(key_file: Path) -> None:
    vault = Vault(key_file)

    assert vault.seal(CANARY, context="c") != vault.seal(CANARY, context="c")


def test_the_keys_are_for_their_owner_alone_and_never_printed(key_file: Path) -> None:
    vault = Vault(key_file)
    vault.seal(b"", context="c")

    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700
    for key in json.loads(key_file.read_text())["keys"].values():
        assert key not in repr(vault) + repr(vault.__dict__)


def test_after_a_rotation_old_values_open_and_are_known_as_stale(key_file: Path) -> None:
    vault, other_process = Vault(key_file), Vault(key_file)
    old = vault.seal(CANARY, context="c")
    other_process.seal(b"", context="c")
    vault.rotate(NOW)
    new = vault.seal(CANARY, context="c")

    assert vault.is_stale(old)
    assert not vault.is_stale(new)
    assert vault.open(old, context="c") == CANARY
    assert other_process.open(new, context="c") == CANARY


def test_what_is_sealed_after_a_rotation_of_another_process_has_the_new_key(key_file: Path) -> None:
    vault, other_process = Vault(key_file), Vault(key_file)
    vault.seal(CANARY, context="c")
    other_process.rotate(NOW)

    assert not other_process.is_stale(vault.seal(CANARY, context="c"))


def test_only_keys_that_were_replaced_long_ago_and_seal_nothing_are_forgotten(key_file: Path) -> None:
    vault = Vault(key_file)
    first = vault.seal(CANARY, context="c")
    vault.rotate(NOW)
    second = vault.seal(CANARY, context="c")
    vault.rotate(NOW + DAY)

    assert vault.forget_replaced_keys(before=NOW) == 0
    assert vault.forget_replaced_keys(before=NOW + DAY, in_use={key_id_of(first)}) == 0
    assert vault.forget_replaced_keys(before=NOW + DAY) == 1
    assert Vault(key_file).open(second, context="c") == CANARY
    with pytest.raises(VaultError):
        Vault(key_file).open(first, context="c")


def test_a_forgotten_key_opens_nothing_and_the_error_says_what_to_do(key_file: Path) -> None:
    vault = Vault(key_file)
    sealed = vault.seal(CANARY, context="secrets:sec_1")
    vault.rotate(NOW)
    assert vault.forget_replaced_keys(before=NOW + DAY) == 1

    with pytest.raises(
        VaultError, match=r"`secrets:sec_1` was sealed with the key .* not in .*vault\.json"
    ) as caught:
        vault.open(sealed, context="secrets:sec_1")
    assert "backup" in str(caught.value.hint)


def test_a_lost_key_file_is_a_clear_error_not_a_crash(key_file: Path) -> None:
    sealed = Vault(key_file).seal(CANARY, context="c")
    key_file.unlink()

    with pytest.raises(VaultError, match="which is not in"):
        Vault(key_file).open(sealed, context="c")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"version": 1, "active": "00", "keys": {"00": "c2hvcnQ="}}',
        '{"version": 1, "active": 7',
    ],
)
def test_a_damaged_key_file_is_reported_and_left_alone(key_file: Path, content: str) -> None:
    key_file.parent.mkdir()
    key_file.write_text(content)
    key_file.chmod(0o600)

    with pytest.raises(VaultError, match="is damaged"):
        Vault(key_file).seal(CANARY, context="c")
    assert key_file.read_text() == content


def test_a_key_file_that_everyone_can_read_is_refused(key_file: Path) -> None:
    Vault(key_file).seal(CANARY, context="c")
    key_file.chmod(0o644)

    with pytest.raises(VaultError, match="every user") as caught:
        Vault(key_file).seal(CANARY, context="c")
    assert caught.value.hint == f"chmod 600 {key_file}"


def test_processes_that_start_together_agree_on_one_key(key_file: Path) -> None:
    vaults = [Vault(key_file) for _ in range(8)]
    barrier = threading.Barrier(len(vaults))
    sealed: list[bytes] = []

    def start(vault: Vault) -> None:
        barrier.wait()
        sealed.append(vault.seal(CANARY, context="c"))

    threads = [threading.Thread(target=start, args=(vault,)) for vault in vaults]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [Vault(key_file).open(value, context="c") for value in sealed] == [CANARY] * len(vaults)
    assert len(json.loads(key_file.read_text())["keys"]) == 1


@pytest.mark.parametrize("rotated_meanwhile", [False, True])
def test_threads_that_read_the_keys_at_once_seal_with_none_that_was_replaced(
    key_file: Path, rotated_meanwhile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread is between looking at the file and knowing what is in it, while another seals."""
    vault, other_process = Vault(key_file), Vault(key_file)
    vault.seal(b"", context="c")
    other_process.rotate(NOW)
    parse, meanwhile = vault_module._from_json, list[bytes]()

    def be_slow(document: dict[str, Any]) -> Any:
        ring = parse(document)
        if not meanwhile:
            meanwhile.append(b"")
            if rotated_meanwhile:
                other_process.rotate(NOW)
            meanwhile[0] = vault.seal(CANARY, context="c")
        return ring

    monkeypatch.setattr(vault_module, "_from_json", be_slow)
    vault.seal(CANARY, context="c")
    assert not other_process.is_stale(meanwhile[0])
    assert not other_process.is_stale(vault.seal(CANARY, context="c"))
