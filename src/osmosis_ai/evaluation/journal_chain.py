"""How damage to a journal is seen: each line carries a SHA-256 over itself and its predecessor's.

A line is a JSON object whose last key is ``sha256``. Its *body* is the line without that key, and its digest is the
SHA-256 of the predecessor's digest (as 64 hex digits; nothing before the first line) and the body. What a bad disk, a
merge or an editor changes, inserts, moves or takes out of the middle no longer fits what stands after it. Lines at
the end that are missing altogether leave no trace, and who computes digests anew is not caught: this is no signature.

A line without a digest was written by 0.3.10, or by hand. It counts as *unverified*; the next line that has a digest
covers it, too.
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
    """Follows a journal from its first line, and knows the digest that the next line is chained to.

    Attributes:
        last: the digest of the last line followed.
        without_digest: lines that had none.
        uncovered: of them, those behind the last line that had one.
        lines: how many were followed, those before this object was made among them, where that is known.
    """

    def __init__(
        self, last: bytes = BEFORE_THE_FIRST, *, lines: int = 0, without_digest: int = 0, uncovered: int = 0
    ) -> None:
        self.lines = lines
        self.last = last
        self.without_digest = without_digest
        self.uncovered = uncovered

    def follow(self, line: bytes) -> bool:
        """Take the next line; return whether it states its digest.

        Raises:
            ValueError: it states another digest than it has; the message says what that means.
        """
        body, stated = opened(line)
        digest = digest_of(body, self.last)
        if stated == digest:  # as nearly all are
            self.last, self.uncovered = digest, 0
            self.lines += 1
            return True
        before, self.uncovered = self.uncovered, self.uncovered + 1 if stated is None else 0
        self.without_digest += stated is None
        if stated is None:
            self.last = digest
            self.lines += 1
            return False
        # What follows is chained to what the line states.
        self.last = stated
        if before:
            raise ValueError(f"it, or one of the {before} lines without digest before it, was changed")
        raise ValueError("it was changed, or the line before it was changed, moved or taken out")
