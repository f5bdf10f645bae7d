"""GPUs in the sandbox: those that the run was granted, and none where it asked for none. No GPU is needed here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.platform.worker import work
from osmosis_ai.sandbox.gpus import GpuGrant, grant_gpus
from osmosis_ai.sandbox.isolation import SandboxCapability
from tests.platform.worker.test_containment import contained
from tests.sandbox.conftest import Machine

ADDRESSES = {0: "0000:41:00.0", 1: "0000:01:00.0"}


def make_gpus(root: Path, *, told: bool = True) -> Path:
    """Write what a machine with two GPUs shows; number 1 comes first on the bus."""
    for name in (
        "nvidia0",
        "nvidia1",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-modeset",
        "dri/renderD128",
        "dri/renderD129",
    ):
        (root / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / name).write_text(f"device {name}")
    (root / "dev" / "nvidia-caps").mkdir()
    (root / "dev" / "nvidia-caps" / "nvidia-cap1").write_text("")
    for minor, address in ADDRESSES.items() if told else ():
        folder = root / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{minor}aaa\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        )
        device = root / "sys/devices" / address
        device.mkdir(parents=True)
        drm = root / "sys/class/drm" / f"renderD{128 + minor}"
        drm.mkdir(parents=True)
        (drm / "device").symlink_to(device)
    return root


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    return make_gpus(tmp_path / "machine")


def grant(root: Path, count: int, visible: str | None = None) -> GpuGrant | None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return grant_gpus(count, root.parent / "locks", environ, root=root)


def shown(granted: GpuGrant | None) -> list[str]:
    assert granted is not None
    return [str(place).removeprefix("/dev/") for _, place in granted.nodes]


def test_a_run_gets_the_files_of_its_own_gpu_and_those_for_all(gpus: Path) -> None:
    granted = grant(gpus, 1)
    assert granted is not None and granted.visible == ("GPU-1aaa",)
    assert shown(granted) == ["nvidia1", "nvidiactl", "nvidia-uvm", "dri/renderD129"]
    assert granted.driver == (gpus / "proc/driver/nvidia", Path("/proc/driver/nvidia"))


def test_another_run_gets_another_gpu_until_it_has_to_share(gpus: Path) -> None:
    first, second, third = grant(gpus, 1), grant(gpus, 1), grant(gpus, 2)
    assert first is not None and second is not None and third is not None
    assert [each.visible for each in (first, second)] == [("GPU-1aaa",), ("GPU-0aaa",)]
    assert (first.shared, second.shared, third.shared) == (0, 0, 2)
    first.close()
    again = grant(gpus, 1)
    assert again is not None and (again.visible, again.shared) == (("GPU-1aaa",), 0)
    for each in (second, third, again):
        each.close()


@pytest.mark.parametrize(
    "visible, expected",
    [
        ("1", ("GPU-0aaa",)),
        ("GPU-0", ("GPU-0aaa",)),
        ("0,1", ("GPU-1aaa", "GPU-0aaa")),
        ("1,-1,0", ("GPU-0aaa",)),
        ("MIG-7", ("MIG-7",)),
        ("MIG-GPU-1aaa/1/0", ("MIG-GPU-1aaa/1/0",)),
        ("0,GPU-1aaa", ("GPU-1aaa",)),
        ("", None),
        ("-1", None),
        ("none", None),
    ],
)
def test_a_run_gets_gpus_of_its_worker(gpus: Path, visible: str, expected: tuple[str, ...] | None) -> None:
    granted = grant(gpus, 2, visible)
    if expected is None:
        assert granted is None
        return
    assert granted is not None and granted.visible == expected
    assert ("nvidia-caps" in shown(granted)) == visible.startswith("MIG-")
    granted.close()


def test_a_lock_that_cannot_be_had_counts_as_somebodys_and_fails_no_run(gpus: Path) -> None:
    (gpus.parent / "locks" / "GPU-1aaa.lock").mkdir(parents=True)
    first, second = grant(gpus, 1), grant(gpus, 2)
    assert first is not None and second is not None
    assert (first.visible, first.shared, second.shared) == (("GPU-0aaa",), 0, 2)
    for each in (first, second):
        each.close()


def test_where_the_driver_does_not_say_which_is_which_numbers_mean_all_files(tmp_path: Path) -> None:
    root = make_gpus(tmp_path / "machine", told=False)
    granted = grant(root, 1)
    assert granted is not None and granted.visible == ("0",) and granted.driver is None
    assert shown(granted)[:2] == ["nvidia0", "nvidia1"]


LOOK = 'ls -d /dev/nvidia* /dev/dri/* /proc/driver/nvidia/gpus/* 2>/dev/null; cat /dev/nvidia1; echo "<$CUDA_VISIBLE_DEVICES>"'


@pytest.mark.integration
def test_what_was_granted_appears_and_the_drivers_word_is_read_only(machine: Machine, gpus: Path) -> None:
    granted = grant(gpus, 1)
    machine.sandbox = replace(machine.sandbox, gpus=granted)
    said = machine.run(
        f"{LOOK}; (: > /proc/driver/nvidia/gpus/0000:01:00.0/information) || echo kept; ls /proc/driver",
        env={"CUDA_VISIBLE_DEVICES": "0,1"},
    ).stdout.split()
    assert said[:6] == [
        "/dev/dri/renderD129",
        "/dev/nvidia-uvm",
        "/dev/nvidia1",
        "/dev/nvidiactl",
        *[f"/proc/driver/nvidia/gpus/{ADDRESSES[number]}" for number in (1, 0)],
    ]
    assert said[6:8] == ["device", "nvidia1<GPU-1aaa>"]
    assert said[-2:] == ["kept", "nvidia"]


@pytest.mark.integration
def test_without_gpus_none_of_it_is_there(machine: Machine) -> None:
    said = machine.run(LOOK).stdout
    assert "/dev/nvidia" not in said.replace("cat: /dev/nvidia1", "") and "/proc/driver" not in said


@pytest.mark.parametrize(
    "machine, asked, words",
    [
        ("machine", None, None),
        ("machine", 0, None),
        ("machine", 1, "GPUs: 1 of 1"),
        ("machine", 3, "GPUs: 2 of 3"),
        ("other", 2, "it requests GPUs (2), but this machine has none"),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_a_runs_log_shows_what_it_got(
    machine: str, asked: int | None, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / machine
    monkeypatch.setattr(work, "check_sandbox", lambda home: SandboxCapability(Path("/bin/bwrap")))
    monkeypatch.setattr(work, "grant_gpus", lambda count, locks: grant_gpus(count, locks, {}, root=root))
    held = contained(tmp_path / "home", {}, False, {}, {"gpus": asked})
    assert held.sandbox is not None
    with held.sandbox.command(["true"], cwd=tmp_path, writable=[]).start({}) as begun:
        command = begun.command
    assert ("/dev/nvidiactl" in command) == (words is not None and machine == "machine")
    assert (words or "GPU") in held.line.message or words is None
    assert ("GPU" in held.line.message) == (words is not None)
    held.close()
