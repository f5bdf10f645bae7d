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


@dataclass(frozen=True)
class Gpu:
    minor: int
    uuid: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class GpuGrant:
    visible: tuple[str, ...]
    nodes: tuple[tuple[Path, Path], ...]
    driver: tuple[Path, Path] | None = None
    shared: int = 0
    _held: ExitStack = field(default_factory=ExitStack, compare=False, repr=False)

    def close(self) -> None:
        self._held.close()


def grant_gpus(
    count: int, locks: Path, environ: Mapping[str, str] | None = None, *, root: Path = Path("/")
) -> GpuGrant | None:
    """Return GPUs for a run, preferring those that no other run has; None without GPUs."""
    present, held = gpus_of_machine(root), ExitStack()
    free: list[str] = []
    taken: list[str] = []
    locks.mkdir(parents=True, exist_ok=True)
    for name in visible_gpus(environ, root=root):
        # Older drivers name a part of a GPU with slashes (`MIG-GPU-<uuid>/1/0`).
        lock = locks / f"{name.replace('/', '-')}.lock"
        (free if len(free) < count and _lock(lock, held) else taken).append(name)
    visible = (free + taken)[:count]
    if not present or not visible:
        held.close()
        return None
    driver = root / DRIVER.relative_to("/")
    granted = [gpu for gpu in present if _name(gpu) in visible]
    # The GPU of a part (MIG) is unknown, and numbers need all files.
    if len(granted) < len(visible) or any(gpu.uuid is None for gpu in granted):
        granted = present
    nodes = tuple((root / node.relative_to("/"), node) for node in _nodes(granted, visible, root))
    shared = max(0, len(visible) - len(free))
    return GpuGrant(tuple(visible), nodes, (driver, DRIVER) if driver.is_dir() else None, shared, held)


def visible_gpus(environ: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> list[str]:
    """Return the names of the GPUs that this process may use."""
    present = gpus_of_machine(root)
    mine = (os.environ if environ is None else environ).get(VISIBLE_ENV)
    # CUDA shows no GPU if one is named twice.
    return list(dict.fromkeys([_name(gpu) for gpu in present] if mine is None else _named(mine, present)))


def counted_gpus(root: Path = Path("/")) -> int | None:
    """Return how many GPUs this process may use; None if GPUs of another vendor cannot be counted."""
    is_counted = sys.platform == "linux" and not (root / "dev" / "kfd").exists()
    return len(visible_gpus(root=root)) if is_counted else None


def gpus_of_machine(root: Path = Path("/")) -> list[Gpu]:
    """Return this machine's GPUs in the order of their addresses on the bus."""
    numbers = (node.name.removeprefix("nvidia") for node in (root / "dev").glob("nvidia[0-9]*"))
    minors = {int(number) for number in numbers if number.isdigit()}
    known = []
    for place in (root / DRIVER.relative_to("/")).glob("gpus/*/information"):
        with suppress(OSError, KeyError, ValueError):
            lines = place.read_text("utf-8", "replace").splitlines()
            facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
            minor = int(facts["Device Minor"])
            if minor in minors:
                known.append(Gpu(minor, facts.get("GPU UUID"), place.parent.name))
    unknown = sorted(minors - {gpu.minor for gpu in known})
    return sorted(known, key=lambda gpu: gpu.address or "") + [Gpu(minor) for minor in unknown]


def _name(gpu: Gpu) -> str:
    return gpu.uuid or str(gpu.minor)


def _named(mine: str, present: list[Gpu]) -> list[str]:
    """Resolve CUDA_VISIBLE_DEVICES as CUDA does: up to the first unknown name."""
    names = []
    for word in (part.strip() for part in mine.split(",")):
        if word.isdigit() and int(word) < len(present):
            names.append(_name(present[int(word)]))
        elif word.startswith("MIG-"):
            names.append(word)
        elif matching := [gpu.uuid for gpu in present if word and (gpu.uuid or "").startswith(word)]:
            names.append(matching[0] or "")
        else:
            break
    return names


def _nodes(granted: list[Gpu], visible: list[str], root: Path) -> Iterator[Path]:
    """Yield the existing device files of GPUs."""
    names = [*(f"nvidia{gpu.minor}" for gpu in granted), *_FOR_ALL]
    if any(name.startswith("MIG-") for name in visible):
        names.append("nvidia-caps")  # gives access to parts of GPUs
    addresses = {gpu.address for gpu in granted if gpu.address}
    for device in sorted((root / "sys/class/drm").glob("renderD*/device")):
        if device.resolve().name in addresses:
            names.append(f"dri/{device.parent.name}")
    yield from (Path("/dev", name) for name in names if (root / "dev" / name).exists())


def _lock(file: Path, held: ExitStack) -> bool:
    """Take a lock until ``held`` is closed or this process ends; return whether it was free."""
    with suppress(OSError), ExitStack() as lock:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        lock.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.push(lock.pop_all())
        return True
    return False
