"""Byte-level tokenizer.

Every token stands for fixed bytes, and a reply is those bytes decoded as UTF-8. A character split over two
tokens appears with its last byte, and invalid UTF-8 becomes U+FFFD. Streamed and whole replies therefore match.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

TOKENIZER_FILE = "tokenizer.json"


class Tokenizer:
    """The tokenizer of one model: a byte-level BPE read from `tokenizer.json`."""

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw = raw
        added = raw.get_added_tokens_decoder()
        size = raw.get_vocab_size(with_added_tokens=True)
        self._bytes = [
            added[token].content.encode() if token in added else _token_bytes(raw.id_to_token(token) or "")
            for token in range(size)
        ]
        self.longest_token = max(map(len, self._bytes))

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Read the tokenizer of the model in ``model_dir``."""
        from tokenizers import Tokenizer as RawTokenizer

        path = model_dir / TOKENIZER_FILE
        try:
            return cls(RawTokenizer.from_file(str(path)))
        except Exception as error:  # tokenizers raises bare Exception for every problem of a file
            raise OsmosisError(f"the tokenizer `{path}` cannot be read: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``; the model's special tokens are recognised in it."""
        ids: list[int] = self._raw.encode(text, add_special_tokens=False).ids
        return ids

    def token_id(self, token: str) -> int | None:
        """Return the id of a token written as in the vocabulary, or None when there is none."""
        found: int | None = self._raw.token_to_id(token)
        return found

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that ``token`` stands for."""
        return self._bytes[token]

    def decoder(self) -> Decoder:
        """Start decoding one reply."""
        return Decoder(self)


class Decoder:
    """The text of one reply, as its tokens come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, *tokens: int) -> str:
        """Return the text that ``tokens`` complete; empty inside a character."""
        return self._utf8.decode(b"".join(map(self._tokenizer.token_bytes, tokens)))

    def finish(self) -> str:
        """Return what is left: U+FFFD when the reply ended inside a character."""
        return self._utf8.decode(b"", final=True)


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes: printable Latin-1 stands for itself."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER = _byte_alphabet()


def _token_bytes(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        raise ValueError(f"token {token!r} is not written in the byte-level alphabet") from None
