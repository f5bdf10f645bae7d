"""The SDK that runs, as a wheel: what is installed beside a rollout is what is installed here.

The wheel is made from the files of the imported package and the metadata of its installation, so
it needs no source tree and no build backend: a checkout, an editable install and an installed
wheel all work. Its bytes depend on nothing but those files, and its version ends in a tag of
their content, so that a name stands for one content and caches can rely on it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.installation import DISTRIBUTION

PACKAGE = "osmosis_ai"
# The oldest date a zip archive can hold; real ones would make equal content differ.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
# Of a PEP 440 local version; the letter keeps an all-digit tag from being read as a number.
_TAG = re.compile(r"[+.]c[0-9a-f]{12}$")
_WHEEL = b"Wheel-Version: 1.0\nGenerator: osmosis\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class SdkContent:
    """The files of the SDK's wheel by their names in it, and the tagged version."""

    version: str
    files: dict[str, bytes]

    @property
    def wheel_name(self) -> str:
        """File name of the wheel."""
        return f"{PACKAGE}-{self.version}-py3-none-any.whl"

    def write_wheel(self, target_dir: Path) -> Path:
        """Write the wheel into a directory, unless it is there; return its path."""
        path = target_dir / self.wheel_name
        if not path.exists():
            archive = io.BytesIO()
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as wheel:
                for name, data in self.files.items():
                    entry = zipfile.ZipInfo(name, date_time=_ZIP_DATE)
                    entry.external_attr = 0o644 << 16
                    wheel.writestr(entry, data)
            write_atomic(path, archive.getvalue(), mode=0o644, durable=False)
        return path


def read_sdk_content() -> SdkContent:
    """Read what the wheel will contain."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise OsmosisError(
            f"`{DISTRIBUTION}` is imported but not installed, so rollouts cannot be given the same SDK.",
            hint='install it with: pip install -e ".[eval]" (in a checkout of the Osmosis repository)',
        ) from None
    # An installation that came from such a wheel gives the same wheel again.
    untagged = _TAG.sub("", distribution.version)
    core = _with_version(distribution.read_text("METADATA") or "", untagged)
    entry_points = distribution.read_text("entry_points.txt") or ""
    files = dict(_package_files())
    digest = hashlib.sha256(f"{core}\0{entry_points}".encode())
    for name, content in files.items():
        digest.update(f"\0{name}\0{hashlib.sha256(content).hexdigest()}".encode())
    version = f"{untagged}{'.' if '+' in untagged else '+'}c{digest.hexdigest()[:12]}"
    info = f"{PACKAGE}-{version}.dist-info"
    files[f"{info}/METADATA"] = _with_version(core, version).encode()
    files[f"{info}/WHEEL"] = _WHEEL
    files[f"{info}/entry_points.txt"] = entry_points.encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    return SdkContent(version, files)


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Yield the package's files by their names in the wheel, in the order of the names."""
    root = Path(__file__).resolve().parent.parent
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if any(part == "__pycache__" or part.startswith(".") for part in parts) or not path.is_file():
            continue
        yield "/".join((PACKAGE, *parts)), path.read_bytes()


def _with_version(core_metadata: str, version: str) -> str:
    return re.sub(r"^Version: .*$", f"Version: {version}", core_metadata, count=1, flags=re.MULTILINE)


def _record(files: dict[str, bytes], own_name: str) -> bytes:
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return ("".join(lines) + f"{own_name},,\n").encode()
