"""The files of a decision, `--markdown` and `--junit`: whether they can be written is known before work begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import replacing_or_streaming, require_writable

if TYPE_CHECKING:
    from osmosis_ai.cli.output.junit import JunitCase
    from osmosis_ai.cli.output.markdown_report import DecisionDocument

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True)
class DecisionFiles:
    """What was asked to be written beside the result."""

    markdown: Path | None = None
    junit: Path | None = None

    def check(self) -> DecisionFiles:
        """Return itself once every file can be written."""
        for option, path in (("--markdown", self.markdown), ("--junit", self.junit)):
            if path is not None:
                try:
                    require_writable(path)
                except OSError as error:
                    raise _unwritable(option, path, error) from None
        return self

    def write(self, document: DecisionDocument, cases: Sequence[JunitCase] = ()) -> None:
        """Write each file in one step; a step's summary that cannot be added to is only warned of."""
        if self.markdown is not None:
            from osmosis_ai.cli.output.markdown_report import markdown_of

            text = markdown_of(document)
            _write("--markdown", self.markdown, text.encode("utf-8"))
            _add_to_step_summary(text)
        if self.junit is not None:
            from osmosis_ai.cli.output.junit import junit_of

            _write("--junit", self.junit, junit_of(document.title, cases))


def _write(option: str, path: Path, data: bytes) -> None:
    try:
        with replacing_or_streaming(path, mode=0o644, durable=False) as out:
            out.write(data)
    except OSError as error:
        raise _unwritable(option, path, error) from None


def _unwritable(option: str, path: Path, error: OSError) -> OsmosisError:
    return OsmosisError(
        f"cannot write `{option} {path}`: {error.strerror or error}.",
        hint="name a file in a directory that you may write to",
    )


def _add_to_step_summary(text: str) -> None:
    """Add to what GitHub shows of a job's step."""
    from osmosis_ai.cli.output.context import current

    path = os.environ.get(STEP_SUMMARY)
    if not path:
        return
    try:
        with Path(path).open("ab") as summary:
            summary.write(f"{text}\n".encode())
    except OSError as error:
        current().warn(f"the summary of this step (${STEP_SUMMARY}) cannot be written: {error.strerror}")
