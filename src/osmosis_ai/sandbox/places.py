"""Find the directories of this machine that a program needs to run.

Only files installed by the operator are considered. A built environment contains code of others, so its contents
never add a directory to a sandbox.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
"""Programs and libraries; links among them are made again."""
ETC = (
    *("resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "protocols", "services"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "crypto-policies"),
    *("pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "mime.types"),
)
"""What of ``/etc`` makes names, certificates, clocks and libraries work; no accounts, no keys."""
SDK = Path(__file__).parent.parent


def interpreter_places(python: Path) -> tuple[Path, ...]:
    """Return the directories an interpreter of the operator needs, both as named and resolved."""
    prefixes = {
        place for place in (python.parent.parent, python.resolve().parent.parent) if _is_prefix(place)
    }
    if python == Path(sys.executable):
        prefixes |= {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
        prefixes |= set(_added_by_site())
    if not any(python.is_relative_to(prefix) for prefix in prefixes):
        prefixes.add(python)
    return reachable_as([*prefixes, SDK])


def _is_prefix(place: Path) -> bool:
    """Tell whether a directory is an installation of Python, and no more: a program may lie anywhere."""
    return (place / "pyvenv.cfg").is_file() or any((place / "lib").glob("python3.*"))


def reachable_as(paths: list[Path]) -> tuple[Path, ...]:
    """Return paths as they are named and as they really are, without the root and what is not there."""
    both = {place for path in paths for place in (Path(os.path.abspath(path)), path.resolve())}  # noqa: PTH100
    return tuple(sorted(place for place in both if place != Path("/") and place.exists()))


def _added_by_site() -> Iterator[Path]:
    """Yield the directories that ``.pth`` files name: projects that are installed as they lie."""
    known = set(sys.path)
    for folder in [entry for entry in sys.path if entry.endswith("-packages")]:
        for file in Path(folder).glob("*.pth"):
            for line in file.read_text("utf-8", "replace").splitlines():
                place = Path(folder, line.strip())
                if str(place) in known and place.is_dir() and not Path.home().is_relative_to(place):
                    yield place
