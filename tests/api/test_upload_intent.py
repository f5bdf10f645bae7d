"""What an upload is meant to be is written down before anybody is asked."""

from __future__ import annotations

import stat
from pathlib import Path

from osmosis_ai.api.transfer import note_intent
from osmosis_ai.api.wire.datasets import UploadIntent

DIGEST = "a" * 64


def test_the_same_upload_has_the_same_intent_until_it_is_forgotten(tmp_path: Path) -> None:
    first = note_intent(tmp_path / "state", digest=DIGEST, scope="here fern/agents sums")
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    assert note_intent(tmp_path / "state", digest=DIGEST, scope="here fern/agents sums") == first
    for other in (
        note_intent(tmp_path / "state", digest="b" * 64, scope="here fern/agents sums"),
        note_intent(tmp_path / "state", digest=DIGEST, scope="there fern/agents sums"),
    ):
        assert other.intent.id != first.intent.id
    first.forget()
    assert note_intent(tmp_path / "state", digest=DIGEST, scope="here fern/agents sums") != first


def test_a_damaged_intent_is_made_anew_and_a_disk_that_cannot_keep_it_does_not_prevent_the_upload(
    tmp_path: Path,
) -> None:
    first = note_intent(tmp_path / "state", digest=DIGEST, scope="s")
    for damage in (b"", b"\xff", b"rubbish"):
        first.path.write_bytes(damage)
        assert note_intent(tmp_path / "state", digest=DIGEST, scope="s").intent.sha256 == DIGEST
    (tmp_path / "file").touch()
    assert note_intent(tmp_path / "file" / "state", digest=DIGEST, scope="s").intent.sha256 == DIGEST


def test_what_a_header_says_is_read_strictly() -> None:
    intent = UploadIntent("1" * 32, DIGEST)
    assert UploadIntent.of(intent.header) == intent
    for header in (None, "", "x", intent.header.upper(), intent.header + "0", f"; sha256={DIGEST}"):
        assert UploadIntent.of(header) is None
