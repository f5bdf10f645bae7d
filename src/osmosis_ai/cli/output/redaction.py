"""Values of secret environment variables never reach stderr, whatever quotes them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from osmosis_ai.redaction import Redactor

_SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$|^(DATABASE_URL|PGPASSWORD)$", re.IGNORECASE
)
# Shorter values ("1", "true", "none") are no secrets, and hiding them would garble the message.
_SHORTEST = 8


def redact(text: str, env: Mapping[str, str] | None = None) -> str:
    """Return ``text`` with every secret value of ``env`` (this process's) replaced."""
    return _redactor(env).text(text)


def redact_tree(value: Any, env: Mapping[str, str] | None = None) -> Any:
    """Return a JSON value with every secret value of ``env`` (this process's) replaced in its texts."""
    return _redactor(env).tree(value)


def _redactor(env: Mapping[str, str] | None) -> Redactor:
    variables = os.environ if env is None else env
    secrets = (value for name, value in variables.items() if _SECRET_NAME.search(name))
    return Redactor(secrets, shortest=_SHORTEST)
