"""Nested directories, deeper than a path or Python before 3.13 can handle."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def deep_directories(directory: Path, levels: int = 1500) -> Iterator[None]:
    """Create them, and remove ``directory`` afterwards, because pytest cannot."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        for _ in range(levels):
            os.mkdir("d", dir_fd=descriptor)
            below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        os.close(descriptor)
        yield
    finally:
        subprocess.run(["rm", "-rf", directory], check=True)
