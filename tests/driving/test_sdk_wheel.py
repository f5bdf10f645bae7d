from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from osmosis_ai.driving import sdk_wheel
from osmosis_ai.driving.sdk_wheel import SdkContent, read_sdk_content
from osmosis_ai.errors import OsmosisError

PACKAGE_DIR = Path(sdk_wheel.__file__).parent.parent


@pytest.fixture(scope="module")
def content() -> SdkContent:
    return read_sdk_content()


def test_the_wheel_holds_the_package_and_none_of_its_litter(content: SdkContent, tmp_path: Path) -> None:
    with zipfile.ZipFile(content.write_wheel(tmp_path)) as wheel:
        names = set(wheel.namelist())
        source = wheel.read("osmosis_ai/errors.py")
    assert {"osmosis_ai/__init__.py", "osmosis_ai/py.typed", "osmosis_ai/rollout/types/sample.py"} <= names
    assert source == (PACKAGE_DIR / "errors.py").read_bytes()
    assert not [name for name in names if "__pycache__" in name or "/." in name]


def test_the_record_vouches_for_every_file(content: SdkContent, tmp_path: Path) -> None:
    with zipfile.ZipFile(content.write_wheel(tmp_path)) as wheel:
        record_name = f"osmosis_ai-{content.version}.dist-info/RECORD"
        rows = list(csv.reader(io.StringIO(wheel.read(record_name).decode())))
        assert {row[0] for row in rows} == set(wheel.namelist())
        for name, digest, size in rows:
            if name == record_name:
                assert (digest, size) == ("", "")
                continue
            data = wheel.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={expected}", str(len(data)))


def test_the_metadata_is_the_installations_with_the_tagged_version(content: SdkContent) -> None:
    info = f"osmosis_ai-{content.version}.dist-info"
    text = content.files[f"{info}/METADATA"].decode()
    assert f"Version: {content.version}\n" in text
    assert "Provides-Extra: server\n" in text
    assert re.fullmatch(r"\d+\.\d+\.\d+\w*\+c[0-9a-f]{12}", content.version)
    assert b"osmosis = osmosis_ai.cli.main:main" in content.files[f"{info}/entry_points.txt"]


def test_the_bytes_depend_on_the_content_alone(content: SdkContent, tmp_path: Path) -> None:
    first = content.write_wheel(tmp_path / "a")
    second = content.write_wheel(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert first.name == content.wheel_name


def test_another_content_has_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = set()
    for source in (b"a = 1\n", b"a = 2\n"):
        monkeypatch.setattr(sdk_wheel, "_package_files", lambda source=source: [("osmosis_ai/a.py", source)])
        versions.add(read_sdk_content().version)
    assert len(versions) == 2


def test_a_wheel_that_is_there_is_not_written_again(tmp_path: Path, content: SdkContent) -> None:
    path = content.write_wheel(tmp_path)
    before = path.stat().st_mtime_ns
    assert content.write_wheel(tmp_path) == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.e2e
def test_pip_can_install_it_and_the_installation_gives_the_same_wheel(
    content: SdkContent, tmp_path: Path
) -> None:
    path = content.write_wheel(tmp_path)
    target = tmp_path / "installed"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            target,
            path,
        ],
        check=True,
        capture_output=True,
    )
    program = "from osmosis_ai.driving.sdk_wheel import *; print(read_sdk_content().wheel_name)"
    rebuilt = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert rebuilt.stdout.strip() == content.wheel_name


def test_a_package_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_installed)
    with pytest.raises(OsmosisError, match="not installed"):
        read_sdk_content()
