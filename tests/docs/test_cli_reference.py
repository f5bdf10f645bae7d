"""docs/cli-reference.md says what the commands say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.integration
def test_the_command_reference_is_what_the_commands_say() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/make_cli_reference.py", "--check"],
        cwd=REPOSITORY,
        # Neither the caller's variables nor the width of a terminal may show on the page.
        env={name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
