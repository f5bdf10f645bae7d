from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from osmosis_ai.cli.output import formats

NOON = datetime(2026, 5, 1, 12, 0, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "seconds, shown",
    [
        (None, "–"),
        (-1, "0 ms"),
        (0.34, "340 ms"),
        (0.9996, "1.0s"),
        (1.5, "1.5s"),
        (59.94, "59.9s"),
        (59.96, "1m 0s"),
        (754, "12m 34s"),
        (3599.6, "1h 0m"),
        (9900, "2h 45m"),
        (90000, "1d 1h"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert formats.duration(seconds) == shown


@pytest.mark.parametrize(
    "bytes_, shown",
    [
        (None, "–"),
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.5 KB"),
        (1024**2 - 1, "1.0 MB"),
        (5 * 1024**3, "5.0 GB"),
        (3 * 1024**5, "3072.0 TB"),
    ],
)
def test_sizes(bytes_: int | None, shown: str) -> None:
    assert formats.size(bytes_) == shown


@pytest.mark.parametrize(
    "moment, seconds, shown",
    [
        (None, False, "–"),
        (NOON, False, "2026-05-01 12:00 PM UTC"),
        (NOON, True, "2026-05-01 12:00:05 PM UTC"),
        (NOON + timedelta(hours=12), False, "2026-05-02 12:00 AM UTC"),
        ("2026-05-01T13:05:00Z", False, "2026-05-01 1:05 PM UTC"),
        ("2026-05-01T13:05:00.123+02:00", True, "2026-05-01 11:05:00 AM UTC"),
        ("2026-05-01T09:05:00", False, "2026-05-01 9:05 AM UTC"),
        ("soon", False, "soon"),
    ],
)
def test_dates(moment: datetime | str | None, seconds: bool, shown: str) -> None:
    assert formats.date(moment, seconds=seconds, zone=timezone.utc) == shown


def test_numbers() -> None:
    assert formats.count(1234567) == "1,234,567"
    assert formats.percent(0.41349) == "41.3 %"
    assert [formats.money(usd) for usd in (0, 0.000042, 0.0123, 0.5, 1234.5)] == [
        "$0.00",
        "$0.000042",
        "$0.0123",
        "$0.50",
        "$1,234.50",
    ]
    assert {formats.count(None), formats.percent(None), formats.money(None)} == {"–"}


def test_control_characters_are_spelled_out_and_letters_are_kept() -> None:
    assert formats.literal("a\x1b]0;t\x07\r\n\tß\u009b") == "a\\x1b]0;t\\x07\n\tß\\x9b"
    assert formats.one_line("a\r\nb\tc\n") == "a b c "


def test_a_job_of_github_obeys_no_line_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "::error::a\nb\n  ::add-mask::c\n##[group]d\ne::f"
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert formats.literal(hostile) == hostile
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    shown = formats.literal(hostile).splitlines()
    assert not any(line.lstrip().startswith("::") or "##[" in line for line in shown)
    assert [line.replace("\u200b", "") for line in shown] == hostile.splitlines()
    assert shown[1] == "b" and shown[4] == "e::f"


def test_a_moment_in_plain_output_is_iso_in_utc_with_what_precision_it_has() -> None:
    moment = datetime(2026, 5, 1, 15, 5, tzinfo=timezone(timedelta(hours=2)))
    assert formats.iso(moment) == "2026-05-01T13:05:00Z"
    assert formats.iso("2026-05-01T13:05:00.250000+00:00") == "2026-05-01T13:05:00.250Z"
    assert (formats.iso("yesterday"), formats.iso(None)) == ("yesterday", formats.MISSING)
