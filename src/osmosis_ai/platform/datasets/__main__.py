"""``python -m osmosis_ai.platform.datasets FILE RESULT``: check one file, away from the platform's memory."""

from __future__ import annotations

import sys

from osmosis_ai.platform.datasets.check import main

main(sys.argv[1:])
