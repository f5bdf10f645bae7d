"""Every test has an empty home and current directory, and none of this machine's settings."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.lazily import WAITING, import_what_waits

NIGHTLY = bool(os.environ.get("NIGHTLY"))
"""Run the tests marked ``nightly`` as well; set by ``make nightly``."""

# A shell starts what is in its background with Ctrl-C ignored, and every process that a test interrupts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is, and nothing about the code.
# The suite draws the same examples every time, so a failure comes from a change; `make nightly` draws new ones.
settings.register_profile(
    "osmosis", deadline=None, max_examples=500 if NIGHTLY else 30, derandomize=not NIGHTLY
)
settings.load_profile("osmosis")

# LiteLLM asks the network for prices as it is imported, and waits for seconds where there is none.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

# Compiling this package again in each process that a test starts takes longer than many of those tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Nothing of what is imported and collected is garbage: searching it again and again takes seconds in every process.
gc.disable()

# What the tests write is read once: where memory serves as a disk, it need not reach one.
_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

_OWNED = re.compile(r"^_?OSMOSIS_|^XDG_|^GIT_|_API_KEY$|^(NO_COLOR|FORCE_COLOR|PYTHON_KEYRING_BACKEND)$")
_numbers = itertools.count()
_crashes: list[str] = []
_PLATFORM = Path(__file__).with_name("platform")
# Nobody has its key and no test reaches a host that could: reading the real authorities takes longer than most tests.
_AUTHORITY = Path(__file__).with_name("authority.pem")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start more workers than cores, because end-to-end tests wait half of the time."""
    cores = os.cpu_count() or 1
    return cores if "not e2e" in config.option.markexpr else cores + (cores + 1) // 2


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Say how a pytest-xdist worker that crashed ended: by which signal, or with which status."""
    if error:
        status = node.gateway._io.popen.wait(10)
        _crashes.append(f"{node.gateway.id} ended with status {status}: {error}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write how crashed workers ended next to the tests that they were running."""
    for crash in _crashes:
        terminalreporter.write_line(f"CRASHED {crash}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import end-to-end tests that are not selected."""
    left_out = "not e2e" in config.option.markexpr and collection_path == Path(__file__).with_name("e2e")
    return True if left_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect nightly tests unless NIGHTLY is set, and mark integration tests.

    Tests with heavy imports come first: one worker runs them, and the others never import torch.
    """
    if not NIGHTLY:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    for item in items:
        if _imports_much(item) or _PLATFORM in item.path.parents:
            item.add_marker("integration")
    items.sort(key=lambda item: not _imports_much(item))


def _imports_much(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    return (
        item.get_closest_marker("imports_much") is not None
        or item.module.__name__ in WAITING
        # The process that others are forked from imports everything, too.
        or hasattr(item.module, "warm_osmosis")
        or hasattr(item.module, "run_osmosis")
        or not {"warm_children", "warm_children_without_torch"}.isdisjoint(item.fixturenames)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function):
        import_what_waits(item.module)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported objects from garbage collection: they are many, and none is garbage."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 20)
    # pytest hangs its handlers on each logger that keeps to itself, six times a test; torch alone has fifty.
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "torch":
            logger.propagate = True


@pytest.fixture
def warm_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork our processes from one that has imported everything, including torch."""
    from tests.warm_osmosis import warm_python

    monkeypatch.setattr(sys, "executable", warm_python(torch=True))


@pytest.fixture
def warm_children_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork our processes from one that has imported everything except torch."""
    from tests.warm_osmosis import warm_python

    monkeypatch.setattr(sys, "executable", warm_python())


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def home(_homes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of the test; the current directory is an empty one next to it."""
    return _move_into(_homes / str(next(_numbers)), monkeypatch)


@contextmanager
def home_of_a_module(root: Path) -> Iterator[Path]:
    """Provide such a home to a fixture of several tests."""
    with pytest.MonkeyPatch.context() as patch:
        yield _move_into(root, patch)


def _move_into(root: Path, patch: pytest.MonkeyPatch) -> Path:
    home, here = root / "home", root / "here"
    home.mkdir(parents=True)
    here.mkdir()
    for name in list(os.environ):
        if _OWNED.search(name):
            patch.delenv(name)
    patch.setenv("HOME", str(home))
    patch.setenv("COLUMNS", "80")
    patch.setenv("TERM", "xterm-256color")
    patch.setenv("SSL_CERT_FILE", str(_AUTHORITY))
    # What a test asks of the keyring must never reach the developer's own.
    patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    # The processes around a test stay in the control group that they are in.
    patch.setenv("OSMOSIS_CGROUP", "off")
    patch.chdir(here)
    # No power is cut here, and a busy disk takes longer to reach than most tests take.
    patch.setattr(os, "fsync", os.fstat)
    return home
