"""What a user sees of one command."""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """Exit status and output of one command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one envelope on stdout."""
        assert self.out.count("\n") == 1, self.out + self.err
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def resource(self) -> dict[str, Any]:
        """The resource of the envelope."""
        return dict(self.json["resource"])

    @property
    def data(self) -> dict[str, Any]:
        """The data of the envelope."""
        return dict(self.json["data"])

    @property
    def error(self) -> dict[str, Any]:
        """The error in the last envelope on stderr."""
        assert self.out == "" and self.status
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return found


class TerminalInput(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True
