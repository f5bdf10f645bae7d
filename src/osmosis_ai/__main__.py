"""`python -m osmosis_ai` is the `osmosis` command."""

from __future__ import annotations

import sys

from osmosis_ai.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
