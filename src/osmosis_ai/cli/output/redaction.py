"""Values of secret environment variables never reach stderr, whatever quotes them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

REDACTED = "[REDACTED]"
_SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$|^(DATABASE_URL|PGPASSWORD)$", re.IGNORECASE
)
# Shorter values ("1", "true", "none") are no secrets, and hiding them would garble the message.
_SHORTEST = 8


def redact(text: str, env: Mapping[str, str] | None = None) -> str:
    """Return ``text`` with every secret value of ``env`` (this process's) replaced."""
    values = {
        value
        for name, value in (os.environ if env is None else env).items()
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name)
    }
    # The longest first: a value may contain another one. Inside JSON a value's quotes are escaped.
    for value in sorted(
        values | {json.dumps(value, ensure_ascii=False)[1:-1] for value in values}, key=len, reverse=True
    ):
        text = text.replace(value, REDACTED)
    return text
