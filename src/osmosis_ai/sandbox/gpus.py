"""GPU device files and read-only driver files for a sandboxed run.

NVIDIA's driver has a file per GPU (`/dev/nvidia0`), some shared files, and `/proc/driver/nvidia`, which maps them.
A sandbox has no files of other GPUs, so GPU numbers differ inside. Programs therefore receive the UUIDs of their
GPUs. The driver's libraries are below `/usr`, which every sandbox can read.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

VISIBLE_ENV = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/proc/driver/nvidia")
_FOR_ALL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
# What lets a program use a part of a GPU (MIG).
_PARTS = "nvidia-caps"


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    minor: int
    uuid: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class GpuGrant:
    """The GPUs of one run."""

    visible: tuple[str, ...]
    nodes: tuple[tuple[Path, Path], ...]
    driver: tuple[Path, Path] | None = None
    shared: int = 0
    _held: ExitStack = field(default_factory=ExitStack, compare=False, repr=False)

    def close(self) -> None:
        """Leave them to another run."""
        self._held.close()


def grant_gpus(
    count: int, locks: Path, environ: Mapping[str, str] | None = None, *, root: Path = Path("/")
) -> GpuGrant | None:
    """Return GPUs for a run, those that no other run has first; None where this machine shows none."""
    there = gpus_of_machine(root)
    names = visible_gpus(environ, root=root)
    held = ExitStack()
    free: list[str] = []
    taken: list[str] = []
    locks.mkdir(parents=True, exist_ok=True)
    for name in names:
        # Older drivers name a part of a GPU with slashes (`MIG-GPU-<uuid>/1/0`).
        lock = locks / f"{name.replace('/', '-')}.lock"
        (free if len(free) < count and _lock(lock, held) else taken).append(name)
    visible = (free + taken)[:count]
    if not there or not visible:
        held.close()
        return None
    granted = [gpu for gpu in there if _name(gpu) in visible]
    # A part of a GPU (MIG) does not say of which, and numbers mean all files.
    if len(granted) < len(visible) or any(gpu.uuid is None for gpu in granted):
        granted = there
    return GpuGrant(
        visible=tuple(visible),
        nodes=tuple((root / node.relative_to("/"), node) for node in _nodes(granted, visible, root)),
        driver=(root / DRIVER.relative_to("/"), DRIVER)
        if (root / DRIVER.relative_to("/")).is_dir()
        else None,
        shared=max(0, len(visible) - len(free)),
        _held=held,
    )


def visible_gpus(environ: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> list[str]:
    """Return the names of this machine's GPUs that this process may use; arguments as of :func:`grant_gpus`."""
    there = gpus_of_machine(root)
    mine = (os.environ if environ is None else environ).get(VISIBLE_ENV)
    # Named twice it is one, and CUDA would show none of them.
    return list(dict.fromkeys([_name(gpu) for gpu in there] if mine is None else _named(mine, there)))


def counted_gpus(root: Path = Path("/")) -> int | None:
    """Return how many GPUs this process may use; None if GPUs of another vendor cannot be counted."""
    is_counted = sys.platform == "linux" and not (root / "dev" / "kfd").exists()
    return len(visible_gpus(root=root)) if is_counted else None


def gpus_of_machine(root: Path = Path("/")) -> list[Gpu]:
    """Return this machine's GPUs in the order of their addresses on the bus."""
    numbers = (node.name.removeprefix("nvidia") for node in (root / "dev").glob("nvidia[0-9]*"))
    minors = {int(number) for number in numbers if number.isdigit()}
    known = [gpu for gpu in _told(root / DRIVER.relative_to("/") / "gpus") if gpu.minor in minors]
    unknown = sorted(minors - {gpu.minor for gpu in known})
    return sorted(known, key=lambda gpu: gpu.address or "") + [Gpu(minor) for minor in unknown]


def _told(folder: Path) -> Iterator[Gpu]:
    for place in folder.glob("*/information"):
        facts = {}
        with suppress(OSError):
            lines = place.read_text("utf-8", "replace").splitlines()
            facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        minor = facts.get("Device Minor", "")
        if minor.isdigit():
            yield Gpu(int(minor), facts.get("GPU UUID"), place.parent.name)


def _name(gpu: Gpu) -> str:
    return gpu.uuid or str(gpu.minor)


def _named(mine: str, there: list[Gpu]) -> list[str]:
    """Return the names of those that this process has: as CUDA reads it, up to the first that there is not."""
    names = []
    for word in (part.strip() for part in mine.split(",")):
        if word.isdigit() and int(word) < len(there):
            names.append(_name(there[int(word)]))
        elif word.startswith("MIG-"):
            names.append(word)
        elif matching := [gpu.uuid for gpu in there if word and (gpu.uuid or "").startswith(word)]:
            names.append(matching[0] or "")
        else:
            break
    return names


def _nodes(granted: list[Gpu], visible: list[str], root: Path) -> Iterator[Path]:
    """Yield the device files of GPUs, as far as they are there."""
    names = [*(f"nvidia{gpu.minor}" for gpu in granted), *_FOR_ALL]
    if any(name.startswith("MIG-") for name in visible):
        names.append(_PARTS)
    addresses = {gpu.address for gpu in granted if gpu.address}
    for device in sorted((root / "sys/class/drm").glob("renderD*/device")):
        if device.resolve().name in addresses:
            names.append(f"dri/{device.parent.name}")
    yield from (Path("/dev", name) for name in names if (root / "dev" / name).exists())


def _lock(file: Path, held: ExitStack) -> bool:
    """Take a lock for as long as this process lives, or it is let go; return whether nobody else has it."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    held.callback(os.close, descriptor)
    return True
