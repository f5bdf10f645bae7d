"""Cost of the sandbox: starting a program in it, and the CPU time of `eval run --isolate` against the same run without it.

CPU time is counted by a control group (cgroup v2).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import harness as bench

from osmosis_ai.processes.child_process import program_start
from osmosis_ai.sandbox.bubblewrap import SandboxedProgram
from osmosis_ai.sandbox.control_groups import Delegation, RunGroup, RunLimits, hierarchy_mount
from osmosis_ai.sandbox.isolation import check_sandbox


@contextlib.contextmanager
def control_group() -> Iterator[RunGroup]:
    mount = hierarchy_mount()
    if mount is None:
        raise SystemExit("error: this machine has no control groups (cgroup v2), which count CPU time.")
    group = RunGroup.make(Delegation(mount, ()), "bench", RunLimits())
    try:
        yield group
    finally:
        group.close()


def run(group: RunGroup, program: Sequence[str] | SandboxedProgram, cwd: Path) -> tuple[float, float]:
    """Run a program to its end; return seconds and CPU seconds of all its processes."""

    def used_s() -> float:
        return int((group.path / "cpu.stat").read_text().partition("usage_usec")[2].split()[0]) / 1e6

    began, cpu = time.perf_counter(), used_s()
    with program_start(program, os.environ) as begun:
        command, how = group.command(begun.command, "all"), {"env": begun.env, "pass_fds": begun.fds}
        subprocess.run(command, cwd=cwd, stdout=subprocess.DEVNULL, check=True, **how)
    return time.perf_counter() - began, used_s() - cpu


def measure_starts(group: RunGroup, directory: Path, times: int) -> list[bench.Row]:
    capability = check_sandbox()
    if not capability.works:
        raise SystemExit(f"{capability.said}; {capability.remedy}")
    source = directory / "source"
    source.mkdir()
    sandbox = capability.sandbox(source)
    programs: dict[str, Sequence[str] | SandboxedProgram] = {
        "alone": ["/bin/true"],
        "sandboxed": sandbox.command(["/bin/true"], cwd=sandbox.source, writable=[]),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(times):
        for name, program in programs.items():
            taken[name].append(run(group, program, directory))
    rows = []
    for name, starts in taken.items():
        seconds, cpu_s = zip(*starts, strict=True)
        row = {
            "start": name,
            "ms": round(1000 * bench.median(seconds, 5), 1),
            "least ms": round(1000 * min(seconds), 1),
        }
        rows.append(row | {"CPU ms": round(1000 * bench.median(cpu_s, 5), 1)})
    return rows


def main() -> None:
    given = bench.options(__doc__, rows=100, runs=5, starts=100)
    command = [*bench.OSMOSIS, "eval", "run", "configs/eval/multiply.toml", "--rows", f"0-{given.rows - 1}"]
    command += ["--name", "bench", "--fresh", "--yes", "--json", "--servers", "1"]
    taken: dict[str, list[float]] = {"": [], "--isolate": []}
    with bench.scratch() as directory, control_group() as group:
        results = measure_starts(group, directory, given.starts)
        workspace = directory / "workspace"
        for name in ("configs", "data", "rollouts"):
            shutil.copytree(bench.REPOSITORY / name, workspace / name)
        subprocess.run(["git", "init", "--quiet", str(workspace)], check=True)
        for number in range(given.runs):
            for option in list(taken)[:: 1 if number % 2 else -1]:
                words = [*command, option] if option else command
                taken[option].append(run(group, words, workspace)[1])
    alone, sandboxed = taken.values()
    ratios = [ours / plain for plain, ours in zip(alone, sandboxed, strict=True)]
    row = {"CPU s of a run": bench.median(alone), "sandboxed": bench.median(sandboxed)}
    row |= {"ratio in sum": round(sum(sandboxed) / sum(alone), 3), "median ratio": bench.median(ratios, 3)}
    bench.report(given, [*results, row])


if __name__ == "__main__":
    main()
