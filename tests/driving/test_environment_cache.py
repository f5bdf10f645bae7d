from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from osmosis_ai.driving import environment_cache
from osmosis_ai.driving.environment_cache import EnvironmentCache, python_of
from tests.deep_directories import deep_directories


def build(scratch: Path, target: Path) -> None:
    python_of(target).parent.mkdir(parents=True)
    python_of(target).write_text("#!/bin/sh\n")
    python_of(target).chmod(0o755)


def never_build(scratch: Path, target: Path) -> None:
    raise AssertionError("it is there already")


def ignore() -> None:
    return None


def names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def test_an_environment_is_built_once(tmp_path: Path) -> None:
    cache = EnvironmentCache(tmp_path)
    environment = cache.get("key", build, on_wait=ignore)
    assert environment == tmp_path / "key"
    assert cache.get("key", never_build, on_wait=ignore) == environment
    assert names(tmp_path) == {"key", ".locks"}


def test_a_failed_build_leaves_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    def fail(scratch: Path, target: Path) -> None:
        build(scratch, target)
        raise RuntimeError("no")

    cache = EnvironmentCache(tmp_path)
    with pytest.raises(RuntimeError):
        cache.get("key", fail, on_wait=ignore)
    assert names(tmp_path) == {".locks"}
    assert cache.get("key", build, on_wait=ignore).exists()


def test_an_environment_whose_interpreter_is_gone_is_built_again(tmp_path: Path) -> None:
    cache = EnvironmentCache(tmp_path)
    python = python_of(cache.get("key", build, on_wait=ignore))
    python.unlink()
    python.symlink_to("/no/such/python")
    assert python_of(cache.get("key", build, on_wait=ignore)).read_text() == "#!/bin/sh\n"


def test_a_build_whose_directories_are_too_deep_to_be_followed_leaves_nothing(tmp_path: Path) -> None:
    with ExitStack() as made:

        def fail(scratch: Path, target: Path) -> None:
            build(scratch, target)
            made.enter_context(deep_directories(target))
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            EnvironmentCache(tmp_path).get("key", fail, on_wait=ignore)
        assert names(tmp_path) == {".locks"}


def test_a_second_builder_waits_and_uses_what_the_first_built(tmp_path: Path) -> None:
    building, waiting = threading.Event(), threading.Event()

    def slow_build(scratch: Path, target: Path) -> None:
        building.set()
        assert waiting.wait(60)
        build(scratch, target)

    results: list[Path] = []

    def get(how: Callable[[Path, Path], None]) -> None:
        results.append(EnvironmentCache(tmp_path).get("key", how, on_wait=waiting.set))

    first = threading.Thread(target=get, args=(slow_build,))
    first.start()
    assert building.wait(60)
    second = threading.Thread(target=get, args=(never_build,))
    second.start()
    first.join()
    second.join()
    assert results == [tmp_path / "key"] * 2


def test_the_least_recently_used_are_removed_unless_they_may_be_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_cache, "KEPT", 2)
    cache = EnvironmentCache(tmp_path)
    for name in ("old", "older", "busy", "recent"):
        cache.get(name, build, on_wait=ignore)
    abandoned = tmp_path / ".building-abandoned"
    abandoned.mkdir()
    now = time.time()
    for path, days in (("older", 9), ("old", 8), (".building-abandoned", 3), ("busy", 0.5), ("recent", 0)):
        os.utime(tmp_path / path, (now - days * 86400,) * 2)
    cache.get("old", never_build, on_wait=ignore)
    cache.get("new", build, on_wait=ignore)
    assert names(tmp_path) == {".locks", "old", "busy", "recent", "new"}


def test_an_environment_that_another_process_is_about_to_use_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_cache, "KEPT", 1)
    cache = EnvironmentCache(tmp_path)
    old = cache.get("old", build, on_wait=ignore)
    long_ago = time.time() - 9 * 86400
    found, pruned = threading.Event(), threading.Event()
    touch = os.utime

    def use_late(path: Path, *times: tuple[float, float]) -> None:
        if path == old and threading.current_thread() is user:
            found.set()
            assert pruned.wait(60)
        touch(path, *times)

    touch(old, (long_ago, long_ago))
    monkeypatch.setattr(os, "utime", use_late)
    results: list[Path] = []
    user = threading.Thread(target=lambda: results.append(cache.get("old", never_build, on_wait=ignore)))
    user.start()
    try:
        assert found.wait(60)
        EnvironmentCache(tmp_path).get("new", build, on_wait=ignore)
    finally:
        pruned.set()
        user.join()
    assert results == [old] and python_of(old).exists()

    touch(old, (long_ago, long_ago))
    cache.get("newer", build, on_wait=ignore)
    assert not old.exists()


def test_what_another_process_takes_away_meanwhile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_cache, "KEPT", 0)
    (tmp_path / ".building-elsewhere").mkdir()
    list_now = Path.iterdir

    def list_before_it_goes(path: Path) -> list[Path]:
        entries = list(list_now(path))
        if path == tmp_path:
            (tmp_path / ".building-elsewhere").rmdir()
        return entries

    monkeypatch.setattr(Path, "iterdir", list_before_it_goes)
    assert EnvironmentCache(tmp_path).get("key", build, on_wait=ignore).exists()
