"""How damage to a journal is seen: each line carries a SHA-256 over itself and its predecessor's.

A line is a JSON object whose last key is ``sha256``. Its *body* is the line without that key, and its digest is the
SHA-256 of the predecessor's digest (as 64 hex digits; nothing before the first line) and the body. What a bad disk, a
merge or an editor changes, inserts, moves or takes out of the middle no longer fits what stands after it. Lines at
the end that are missing altogether leave no trace, and who computes digests anew is not caught: this is no signature.

A journal of the public SDK has no digests. Only the upload of a run accepts one.
"""

from __future__ import annotations

import hashlib

BEFORE_THE_FIRST = b""
_KEY = b',"sha256":"'
_HEX_DIGITS = 64
_END = b'"}\n'
_ADDED = len(_KEY) + _HEX_DIGITS + len(_END)


def digest_of(body: bytes, previous: bytes) -> bytes:
    """Return the digest (64 hex digits) of a line with ``body``, newline included, behind one with ``previous``."""
    return hashlib.sha256(previous + body).hexdigest().encode()


def sealed(body: bytes, previous: bytes) -> tuple[bytes, bytes]:
    """Return a line with its digest in it, and that digest; ``body`` is a non-empty JSON object and a newline."""
    digest = digest_of(body, previous)
    return body[: -len(b"}\n")] + _KEY + digest + _END, digest


def opened(line: bytes) -> tuple[bytes, bytes | None]:
    """Return a line's body and the digest it states, None when it states none."""
    start = len(line) - _ADDED
    if start > 0 and line.endswith(_END) and line.startswith(_KEY, start):
        return line[:start] + b"}\n", line[start + len(_KEY) : -len(_END)]
    return line, None


class Chain:
    """Follows a journal from its first line, and knows the digest that the next line is chained to."""

    def __init__(
        self, last: bytes = BEFORE_THE_FIRST, *, lines: int = 0, without_digests: bool = False
    ) -> None:
        """Follow a journal after ``lines`` lines, the last of which has the digest ``last``."""
        self.last = last
        self.lines = lines
        self._without_digests = without_digests

    def follow(self, line: bytes) -> None:
        """Take the next line."""
        body, stated = opened(line)
        if stated is None:
            if not (self._without_digests and self.last == BEFORE_THE_FIRST):
                raise ValueError("it has no digest")
        elif stated != digest_of(body, self.last):
            # The next line is chained to what this one states.
            self.last = stated
            raise ValueError("it was changed, or the line before it was changed, moved or removed")
        else:
            self.last = stated
        self.lines += 1
