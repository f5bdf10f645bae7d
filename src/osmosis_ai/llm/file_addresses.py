"""An address that a file chose is for that file's keys: a key from anywhere else is never sent there.

The command line says which addresses of this process's environment came from a `.env`; whoever puts an address and a
key together asks here. A key may come late (a secrets file, a prompt, a variable that a rubric names), so the
question is put where both are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.errors import ConflictError


@dataclass(frozen=True)
class FileAddress:
    """An address that a file set.

    Attributes:
        value: the address.
        keys: the variables whose values would be sent there.
        credentials: the values that may be: those of the same file.
        path: the file.
    """

    value: str
    keys: tuple[str, ...]
    credentials: frozenset[str] = field(repr=False)
    path: Path


_addresses: dict[str, FileAddress] = {}


def set_file_addresses(addresses: Mapping[str, FileAddress]) -> None:
    """Remember which variables of this process's environment are addresses that a file chose."""
    _addresses.clear()
    _addresses.update(addresses)


def refuse_redirect(variables: Iterable[str], env: Mapping[str, str], key: str | None) -> None:
    """Refuse to use ``key`` at an address that a file chose and the key is not of.

    Args:
        variables: those that may hold the address, the one that counts first.
        env: where they were looked up.
        key: what would be sent.

    Raises:
        ConflictError: naming the variable, the file and the command that allows it.
    """
    used = next((name for name in variables if env.get(name, "").strip()), None)
    chosen = _addresses.get(used) if used is not None else None
    if chosen is None or used is None or key is None or env[used] != chosen.value:
        return
    if key not in chosen.credentials:
        raise _refusal(used, chosen, "a key")


def refuse_redirected_secrets(addresses: Mapping[str, FileAddress], values: Mapping[str, str]) -> None:
    """Refuse to give a rollout secrets together with an address that a file chose and they are not of.

    Args:
        addresses: what the rollout will have, by variable.
        values: the secrets.

    Raises:
        ConflictError: naming the variables, the file and the command that allows it.
    """
    for name, chosen in addresses.items():
        for key in chosen.keys:
            if key in values and values[key] not in chosen.credentials:
                raise _refusal(name, chosen, f"`{key}`")


def _refusal(name: str, chosen: FileAddress, what: str) -> ConflictError:
    return ConflictError(
        f"`{name}` of {chosen.path} would send {what} that is not of that file to another address.",
        details={"variable": name, "env_file": str(chosen.path)},
        hint=f"if you trust the file: osmosis env allow {chosen.path}; else take the line out of it",
    )
