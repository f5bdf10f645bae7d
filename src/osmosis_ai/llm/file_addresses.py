"""Addresses from a `.env`, which must not receive keys from another source.

The command line pairs each address with the keys of the same file. A key may be added later (an option, a variable that
a rubric names), so the code that combines an address and a key checks here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.errors import ConflictError


@dataclass(frozen=True)
class FileAddress:
    """An address from a file, and the keys of that file, which may be sent to it."""

    value: str
    own: frozenset[str] = field(repr=False)
    path: Path


_addresses: dict[str, FileAddress] = {}


def set_file_addresses(addresses: Mapping[str, FileAddress]) -> None:
    """Record which variables of this process are addresses from a file."""
    _addresses.clear()
    _addresses.update(addresses)


def refuse_redirect(variables: Iterable[str], env: Mapping[str, str], key: str | None) -> None:
    """Refuse to send ``key`` to an address from a file that does not contain the key."""
    for name in variables:
        address = _addresses.get(name)
        if address is not None and env.get(name) == address.value and key and key not in address.own:
            raise address_conflict(name, address.path)


def address_conflict(name: str, path: Path, key: str = "a key", *, elsewhere: bool = False) -> ConflictError:
    """Return the error for an address whose file lacks its key, or whose key is also set ``elsewhere``."""
    return ConflictError(
        f"{name} in {path} is accepted only with {key} from the same file"
        + (f", and {key} is set outside that file." if elsewhere else "."),
        details={"variable": name, "key": key, "env_file": str(path)},
        hint="set the address and its key in one place: both in the file or both in the environment",
    )
