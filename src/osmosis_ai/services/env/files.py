"""What of an environment file counts: names a run may need, and no address for a credential from elsewhere.

There is a list of what is taken into this process: the variables that say who and where, and those of model
providers. All other names are kept for rollouts whose config lists them as secrets, except names that change how
programs start, which nobody gets. An address counts for a credential of the same file; for one of the shell, the
keyring or a prompt, and for a token in a file at all, the user allows the file: by `osmosis env allow`, for its
content, or by naming it with `--env-file`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from osmosis_ai.api.platform_url import (
    INFERENCE_URL_ENV,
    PLATFORM_URL_ENV,
    TOKEN_ENV,
    TOKEN_PLATFORM_ENV,
)
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.llm.file_addresses import FileAddress, refuse_redirected_secrets
from osmosis_ai.llm.providers import address_variables, credential_variables
from osmosis_ai.process_environment import why_reserved
from osmosis_ai.workspace.env_file import (
    FILE_NAME,
    EnvFile,
    UntrustedEnvFile,
    env_file_path,
    read_workspace_env_file,
)

VariableUse = Literal["used", "shell", "needs_permission", "rollouts", "never"]
"""What becomes of one name of a file.

``used``: taken into this process. ``shell``: the shell has it, which wins. ``needs_permission``: not until the
user allows the file. ``rollouts``: for a rollout whose config lists it. ``never``: for nobody.
"""
PROFILE = (TOKEN_ENV, PLATFORM_URL_ENV, TOKEN_PLATFORM_ENV)
"""Who and where: never mixed from two places that disagree."""
_OURS = frozenset({*PROFILE, INFERENCE_URL_ENV})
_ADDRESS = re.compile(r"(?P<whose>.+)_(API_BASE|BASE_URL)")
_CREDENTIAL = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)")


@dataclass(frozen=True)
class ClassifiedEnvFile:
    """A file and what becomes of its names.

    Attributes:
        file: what was read.
        allowed: whether the user has allowed this content, or named the file.
        uses: each name's.
    """

    file: EnvFile
    allowed: bool
    uses: Mapping[str, VariableUse]

    def names(self, *uses: VariableUse) -> list[str]:
        """Return the names with one of these uses, in the file's order."""
        return [name for name, use in self.uses.items() if use in uses]

    @property
    def used(self) -> dict[str, str]:
        """What is taken into this process."""
        return {name: self.file.values[name] for name in self.names("used")}

    @property
    def guarded_addresses(self) -> dict[str, FileAddress]:
        """The addresses among :attr:`used` that count for the file's own credentials alone."""
        if self.allowed:
            return {}
        known = address_variables()
        return {name: self._address(name, known[name]) for name in self.used if name in known}

    def values_for_rollout(self, names: Iterable[str]) -> dict[str, str]:
        """Return the values for those of ``names``, which a config lists as secrets, that a rollout may have."""
        free = set(self.names("rollouts"))
        return {name: self.file.values[name] for name in names if name in free}

    def refuse_redirected(self, secrets: Mapping[str, str]) -> None:
        """Refuse to give a rollout an address of this file together with a credential from elsewhere.

        Args:
            secrets: all that the rollout is to get.

        Raises:
            ConflictError: naming the variables, the file and the command that allows it.
        """
        if self.allowed:
            return
        addresses = self.guarded_addresses
        for name in self.values_for_rollout(secrets):
            if redirects := _ADDRESS.fullmatch(name):
                addresses[name] = self._address(name, _credentials_like(redirects["whose"], secrets))
        refuse_redirected_secrets(addresses, secrets)

    def _address(self, name: str, credentials: Iterable[str]) -> FileAddress:
        values = self.file.values
        return FileAddress(values[name], tuple(credentials), frozenset(values.values()), self.file.path)


def classify_env_file(file: EnvFile, environ: Mapping[str, str], *, allowed: bool) -> ClassifiedEnvFile:
    """Decide about every name of a file.

    Args:
        file: what was read.
        environ: the shell's variables; they win over the file's.
        allowed: whether the user has allowed this content, or named the file.
    """
    classify = _Classifier(file.values, environ, allowed)
    uses = {name: classify(name) for name in file.values}
    return ClassifiedEnvFile(file, allowed, uses)


@dataclass(frozen=True)
class _Classifier:
    values: Mapping[str, str] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    allowed: bool

    def __call__(self, name: str) -> VariableUse:
        addresses = address_variables()
        if name in _OURS:
            return self._unless_in_shell(name, permitted=self.allowed)
        if name in addresses:
            return self._unless_in_shell(name, permitted=self.allowed or self._is_own(addresses[name]))
        if name in credential_variables():
            return self._unless_in_shell(name, permitted=True)
        if why_reserved(name) is not None:
            return "never"
        if redirects := _ADDRESS.fullmatch(name):
            return self._address_of_others(redirects["whose"])
        return "rollouts"

    def _unless_in_shell(self, name: str, *, permitted: bool) -> VariableUse:
        if name in self.environ:
            return "shell"
        return "used" if permitted else "needs_permission"

    def _is_own(self, credentials: Iterable[str]) -> bool:
        """Whether what would be sent to an address is the file's: something of it, and nothing of the shell's."""
        names = [*credentials]
        return any(name in self.values for name in names) and not any(
            self.environ.get(name, "").strip() for name in names
        )

    def _address_of_others(self, whose: str) -> VariableUse:
        """Decide about an address of a service we do not know: its credentials are what is called alike."""
        alike = _credentials_like(whose, (*self.values, *self.environ))
        return "rollouts" if self.allowed or self._is_own(alike) else "needs_permission"


@dataclass(frozen=True)
class EnvFileStatus:
    """What commands here make of the environment file.

    Attributes:
        path: where it is, or would be.
        classified: what is in it; None where there is none, or it is not read.
        refusal: why it is not read.
        remedy: what mends that.
        addresses: the hosts that its addresses name, by variable.
    """

    path: Path
    classified: ClassifiedEnvFile | None = None
    refusal: str | None = None
    remedy: str | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)

    def resource(self) -> dict[str, Any]:
        """Return the status as scripts see it: names, never values."""
        classified = self.classified
        return {
            "path": str(self.path),
            "state": "unread" if self.refusal else "absent" if classified is None else "read",
            "reason": self.refusal,
            "allowed": classified is not None and classified.allowed,
            "sha256": classified.file.digest if classified is not None else None,
            "names": dict(classified.uses) if classified is not None else {},
            "unresolved": list(classified.file.unresolved) if classified is not None else [],
            "bad_lines": list(classified.file.bad_lines) if classified is not None else [],
            "addresses": dict(self.addresses),
        }


def env_file_status(path: Path | None = None) -> EnvFileStatus:
    """Look at an environment file without taking anything from it.

    Args:
        path: the file, or the directory that it is in; the one that commands read here when None.

    Raises:
        OsmosisError: when it cannot be read.
    """
    from osmosis_ai.services.env.consents import EnvConsents

    path = _place(path)
    try:
        file = read_workspace_env_file(path)
    except UntrustedEnvFile as error:
        return EnvFileStatus(path, refusal=error.message, remedy=error.hint)
    if file is None:
        return EnvFileStatus(path)
    classified = classify_env_file(file, os.environ, allowed=EnvConsents().allows(path, file.digest))
    hosts = {name: _host(file.values[name]) for name in file.values if _is_address(name)}
    return EnvFileStatus(path, classified, addresses=hosts)


def allow_env_file(path: Path | None = None) -> EnvFileStatus:
    """Allow a file as it is now; a change of it takes the permission away.

    Raises:
        NotFoundError: there is none.
        OsmosisError: it is not read at all, or the permission cannot be written down.
    """
    from osmosis_ai.services.env.consents import EnvConsents

    status = env_file_status(path)
    if status.refusal is not None:
        raise OsmosisError(
            f"{status.refusal}; it cannot be allowed.",
            details=status.resource(),
            hint=f"{status.remedy}; or name it for one command: osmosis --env-file {status.path} …",
        )
    if status.classified is None:
        raise NotFoundError(f"there is no {status.path}.", details={"path": str(status.path)})
    EnvConsents().allow(status.path, status.classified.file.digest)
    return env_file_status(status.path)


def revoke_env_file(path: Path | None = None) -> tuple[Path, bool]:
    """Take the permission of a file back, whether it is there or not; return its place, and whether it had one.

    Raises:
        OsmosisError: when that cannot be written down.
    """
    from osmosis_ai.services.env.consents import EnvConsents

    path = _place(path)
    return path, EnvConsents().revoke(path)


def _place(path: Path | None) -> Path:
    if path is None:
        return env_file_path(Path.cwd())
    path = expanded(path)
    # The directory's own spelling, as commands in it have it; the file itself may be a link, which is refused.
    return path.resolve() / FILE_NAME if path.is_dir() else path.parent.resolve() / path.name


def _is_address(name: str) -> bool:
    return name in _OURS - {TOKEN_ENV} or name in address_variables() or bool(_ADDRESS.fullmatch(name))


def _host(address: str) -> str:
    """Return the host of an address, which is what one agrees to."""
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname
    except ValueError:
        host = None
    return host or "(not a URL)"


def _credentials_like(whose: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(f"{whose}_") and _CREDENTIAL.fullmatch(name)}
