"""`python -m osmosis_ai.cli` is the `osmosis` command, as in the 0.2 SDK."""

from __future__ import annotations

import sys

from osmosis_ai.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
