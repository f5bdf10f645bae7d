"""Directories in one another, more of them than a path can name or Python, before 3.13, can follow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def deep_directories(directory: Path, levels: int = 1500) -> Iterator[None]:
    """Make them, and remove what is left of ``directory``: who clears away behind the tests would get lost in it."""
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
