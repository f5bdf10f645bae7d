"""The `.env` of a checkout, which is untrusted text.

It may set keys and addresses of model providers in this process, and in the rollout the secrets that a config lists.
An address from the file is never used with a key from another source.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.providers import (
    CLOUD_SETTINGS,
    FILE_ADDRESSES,
    FileAddress,
    address_conflict,
    address_variables,
    credential_variables,
    keyless_address_variables,
)
from osmosis_ai.process_environment import why_reserved

MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ADDRESS = re.compile(r"(?P<service>.+)_(API_BASE|BASE_URL)")
_CREDENTIAL = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)")
# Restricted, because a region such as `evil.example/` would become the host of a cloud's URL.
_PLAIN_SETTING = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAMES_SHOWN = 12
Warn = Callable[[str, "str | None"], None]


@dataclass(frozen=True)
class EnvFile:
    """The variables of one environment file."""

    path: Path
    values: Mapping[str, str] = field(repr=False)

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Return the values of those ``names`` that a rollout may get."""
        return {name: self.values[name] for name in names if name in self.values and not why_reserved(name)}

    def refuse_foreign_keys(self, env: Mapping[str, str]) -> None:
        """Raise a ConflictError if ``env`` has an address from this file and a key for it from another source."""
        for name, value in self.values.items():
            if env.get(name) == value and (name in address_variables() or _ADDRESS.fullmatch(name)):
                for key in self.foreign_keys(name, env):
                    raise address_conflict(name, self.path, key, elsewhere=True)

    def foreign_keys(self, address: str, env: Mapping[str, str]) -> list[str]:
        """Return the variables of ``env`` with a key for ``address`` from another source."""
        own = self.values.values()
        return [key for key in _keys_of(address, env) if env.get(key, "").strip() and env[key] not in own]


def load_env_file(
    path: Path, environ: MutableMapping[str, str], warn: Warn, *, named: bool
) -> EnvFile | None:
    """Set in ``environ`` what an environment file may set, and return the file; None if it is ignored.

    Variables that are already set keep their value. The owner of a file that the user ``named`` is trusted. An address
    without its key, or with a key in the environment, is a ConflictError.
    """
    file = _read(path, warn, named=named)
    if file is None:
        return None
    addresses = address_variables()
    # `OPENAI_API_BASE` of the shell also overrides `OPENAI_BASE_URL` of the file.
    shadowed = [keys for name, keys in addresses.items() if name in environ]
    accepted = {name for name, keys in addresses.items() if keys not in shadowed}
    accepted |= credential_variables() | CLOUD_SETTINGS
    taken, ignored = {}, []
    for name, value in file.values.items():
        if why_reserved(name) or (name in CLOUD_SETTINGS and not _PLAIN_SETTING.fullmatch(value)):
            ignored.append(name)
        elif name in accepted and name not in environ:
            taken[name] = value
    if ignored:
        platform = "; use `osmosis --platform URL login`" if "OSMOSIS_PLATFORM_URL" in ignored else ""
        warn(
            f"{file.path}: ignored {_listed(ignored)} (not accepted from a file{platform})",
            "ENV_FILE_NAMES_IGNORED",
        )
    for name in [name for name in taken if name in addresses]:
        _pair(file, name, environ, warn)
    environ.update(taken)
    own = frozenset(file.values.values())
    FILE_ADDRESSES.clear()
    FILE_ADDRESSES.update(
        {name: FileAddress(value, own, file.path) for name, value in taken.items() if name in addresses}
    )
    return file


def _pair(file: EnvFile, address: str, environ: MutableMapping[str, str], warn: Warn) -> None:
    """Ensure that only keys from the file are sent to an address from the file."""
    keys = _keys_of(address, file.values)
    has_key = any(key in file.values for key in keys)
    foreign = file.foreign_keys(address, environ)
    needs_key = address not in keyless_address_variables() and not _is_local(file.values[address])
    if (has_key and foreign) or (not has_key and needs_key):
        raise address_conflict(address, file.path, [*foreign, *keys][0], elsewhere=has_key)
    for key in foreign:
        del environ[key]
        warn(
            f"{key} from the environment is not used: {address} is from {file.path}", "ENV_FILE_KEY_NOT_USED"
        )


def _keys_of(address: str, names: Iterable[str]) -> list[str]:
    """Return the variables whose values may be sent to ``address``: known ones, and similar ones among ``names``."""
    match = _ADDRESS.fullmatch(address)
    alike = (
        [name for name in names if name.startswith(f"{match['service']}_") and _CREDENTIAL.fullmatch(name)]
        if match
        else []
    )
    return list(dict.fromkeys([*address_variables().get(address, ()), *alike]))


def _is_local(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address if "://" in address else f"//{address}").hostname)
    except ValueError:
        return False


def _read(path: Path, warn: Warn, *, named: bool) -> EnvFile | None:
    try:
        # Opening waits for a pipe only if the user named it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if named else os.O_NONBLOCK))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    with os.fdopen(descriptor, "rb") as file:
        if reason := (None if named else _untrusted(os.fstat(descriptor))) or _tracked(path):
            warn(f"{path} is ignored: {reason}", "ENV_FILE_IGNORED")
            return None
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _unreadable(path, f"larger than {MAX_BYTES >> 20} MiB")
    try:
        return _parse(path, content.decode("utf-8-sig"), warn)
    except UnicodeDecodeError:
        raise _unreadable(path, "not UTF-8") from None


def _untrusted(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid not in (os.geteuid(), 0):
        return "it belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return "every user of this machine may write to it (chmod o-w)"
    return None


def _tracked(path: Path) -> str | None:
    """Return why a file counts as part of the repository: it or its link target is tracked."""
    from osmosis_ai.workspace.git import checkout_root, is_tracked

    for place in dict.fromkeys([path.parent.resolve() / path.name, path.resolve()]):
        root = checkout_root(place.parent)
        try:
            if root is not None and is_tracked(root, place.relative_to(root).as_posix()):
                return f"Git tracks it (git rm --cached {place})"
        except OsmosisError as error:
            return f"Git cannot tell whether it is tracked ({error.message.strip()})"
    return None


def _parse(path: Path, text: str, warn: Warn) -> EnvFile:
    from dotenv.parser import parse_stream
    from dotenv.variables import Variable, parse_variables

    values: dict[str, str] = {}
    unresolved: dict[str, None] = {}
    for binding in parse_stream(io.StringIO(text)):
        if binding.error or (binding.key is not None and not _NAME.fullmatch(binding.key)):
            warn(f"{path}, line {binding.original.line}: ignored, not `NAME=value`", None)
        elif binding.key is not None and binding.value is not None:
            # `${NAME}` refers to this file only: a variable of the shell must not get into an address.
            parts = list(parse_variables(binding.value))
            needed = {part.name for part in parts if isinstance(part, Variable) and part.default is None}
            if needed <= values.keys():
                values[binding.key] = "".join(part.resolve(values) for part in parts)
                unresolved.pop(binding.key, None)
            else:
                values.pop(binding.key, None)
                unresolved[binding.key] = None
    if unresolved:
        warn(
            f"{path}: ignored {_listed(list(unresolved))} (refers to a name that the file does not set)",
            "ENV_FILE_NAMES_IGNORED",
        )
    return EnvFile(path, {name: value for name, value in values.items() if value and "\0" not in value})


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _unreadable(path: Path, reason: str) -> OsmosisError:
    return OsmosisError(f"Environment file cannot be read: {path} ({reason}).")
