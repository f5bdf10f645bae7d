"""Wheels of a few lines for tests of rollout environments: no index, no network."""

from __future__ import annotations

import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a pure-Python wheel; without ``files`` it holds one module with a VERSION."""
    module = name.replace("-", "_")
    content = dict({f"{module}.py": f"VERSION = {version!r}\n"} if files is None else files)
    info = f"{module}-{version}.dist-info"
    header = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {line}" for line in requires),
        *(f"Provides-Extra: {extra}" for extra in extras),
    ]
    content[f"{info}/METADATA"] = "\n".join(header) + "\n"
    content[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file_name, text in content.items():
            wheel.writestr(file_name, text)
    return path


def make_sdk_dependencies(directory: Path) -> None:
    """Stand in for everything the SDK requires to serve.

    The wheels are empty; one of them lets the built environment import the real packages from
    the environment that runs the tests.
    """
    host = sysconfig.get_path("purelib")
    for line in metadata.requires("osmosis-ai") or ():
        need = Requirement(line)
        if need.name == "osmosis-ai" or (
            need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in ("", "server"))
        ):
            continue
        files = {"zz_host_packages.pth": host + "\n"} if need.name == "aiohttp" else {}
        make_wheel(directory, need.name, metadata.version(need.name), files=files)
