"""File names of a training run, shared by workers and the platform.

A validation's files are under its *version*, a name that identifies the validation by itself.
"""

from __future__ import annotations

import hashlib
import re

from osmosis_ai.evaluation.attempt_files import item_name

CHECKPOINTS, RESUME = "checkpoints", "resume"
"""Upload name prefixes of kept adapters and of resume archives."""
RESUME_FILE = "checkpoint.tar"
"""What such an archive is called in its part."""
KIND = "validation"
"""Of the files of the newest validation."""
SAMPLES_PATH = f"{KIND}/samples.jsonl"
_VERSION = re.compile(r"(\d{1,10})-[0-9a-f]{16}")


def conversation_path(row: int, attempt: int) -> str:
    """Return what the conversation of a sample is called among the run's files."""
    return f"{KIND}/{item_name(row, attempt)}.json"


def version_of(step: int, listed: bytes) -> str:
    """Return the name of the validation after ``step`` whose list of samples is ``listed``."""
    return f"{step}-{hashlib.sha256(listed).hexdigest()[:16]}"


def is_version(name: str) -> bool:
    """Tell whether ``name`` is one that :func:`version_of` makes: a single segment of a key."""
    return _VERSION.fullmatch(name) is not None


def blobs_below(version: str) -> str:
    """Return what the names of all blobs of a validation begin with, below those of its run."""
    return f"{KIND}/{version}"


def version_in_key(blob_key: str) -> str:
    """Return of which validation a blob of one is."""
    return blob_key.split("/")[-2]
