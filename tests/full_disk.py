"""A disk that is full for one process alone: a file that may grow no further fails as it does there.

The interpreter does not notice that half of a module's cached code was written, and every process that imports the module
later ends with `EOFError`. So nothing that is limited here may write such a file.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NO_CACHED_CODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""What the environment of a process that is started with ``limit_files`` has to hold."""


def limit_files(size: int) -> None:
    """Limit the size of all files of this process and its children, in bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of all files of this process for a while, in bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        limit_files(size)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
