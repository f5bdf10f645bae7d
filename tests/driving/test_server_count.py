from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.driving import server_count
from osmosis_ai.driving.server_count import default_servers, granted_cores, useful_servers


@pytest.fixture
def sixteen_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_count.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def granted(limits: Path, membership: str, cpus: float | None = None) -> int:
    file = limits.parent / "membership"
    file.write_text(membership)
    return granted_cores(cpus, limits=limits, membership=file)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.usefixtures("sixteen_processors")
@pytest.mark.parametrize(
    ("files", "membership", "cores"),
    [
        ({"user/job/cpu.max": "250000 100000\n", "user/cpu.max": "max 100000\n"}, "0::/user/job\n", 2),
        ({"user/job/cpu.max": "max 100000\n", "user/cpu.max": "400000 100000\n"}, "0::/user/job\n", 4),
        # In a container the path is the host's, and what is granted stands at the root.
        ({"cpu.max": "300000 100000\n"}, "0::/docker/abc\n", 3),
        ({"cpu.max": "50000 100000\n"}, "0::/\n", 1),
        (
            {"cpu/job/cpu.cfs_quota_us": "600000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            "7:memory:/job\n4:cpu,cpuacct:/job\n",
            6,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/\n", 16),
        ({"cpu.max": "what\n"}, "0::/\nnonsense\n", 16),
        ({}, "", 16),
    ],
)
def test_the_processors_are_those_that_every_group_above_grants(
    limits: Path, files: dict[str, str], membership: str, cores: int
) -> None:
    for path, text in files.items():
        write(limits / path, text)
    assert granted(limits, membership) == cores
    assert granted(limits, membership, cpus=2.5) == min(2, cores)


@pytest.mark.parametrize(("cores", "servers"), [(1, 1), (2, 1), (3, 2), (4, 3), (9, 8), (64, 8)])
def test_one_processor_is_left_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, cores: int, servers: int
) -> None:
    monkeypatch.setattr(server_count, "granted_cores", lambda cpus: cores)
    assert default_servers() == servers
    assert default_servers(gpus=0) == servers
    assert default_servers(gpus=1) == 1, "what it has loaded there would be loaded as often"


@pytest.mark.parametrize(
    ("asked", "rollouts", "at_once", "servers"),
    [(4, 100, None, 4), (4, 3, None, 3), (4, 100, 2, 2), (4, 0, None, 1), (1, 100, 64, 1)],
)
def test_a_server_with_nothing_to_do_is_not_started(
    asked: int, rollouts: int, at_once: int | None, servers: int
) -> None:
    assert useful_servers(asked, rollouts=rollouts, at_once=at_once) == servers
