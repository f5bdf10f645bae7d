from __future__ import annotations

from datetime import datetime, timezone

from osmosis_ai.retry_after import retry_after_s


def test_retry_after() -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert retry_after_s({"retry-after": "2.5"}) == 2.5
    assert retry_after_s({"retry-after": " 12 "}) == 12
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after_s({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, now=now) == 30.0
    assert retry_after_s({"retry-after": "Wed, 31 Dec 2025 00:00:00 GMT"}, now=now) == 0.0
    assert retry_after_s({"retry-after": "-3"}) == 0
    for nonsense in ("soon", "", "nan", "inf"):
        assert retry_after_s({"retry-after": nonsense}) is None
    assert retry_after_s({}) is None
