"""Cost of the sandbox: starting a program in it, and the CPU time of `eval run --isolate` against the same run without it.

CPU time is that of a control group (cgroup v2), or else of children that ended. Bubblewrap does not report the times of
what ran in it, so the rollout server writes down its own, and the CPU time of a start is unknown.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import OSMOSIS, REPOSITORY, Row, children_cpu_s, median, options, report, scratch

from osmosis_ai.processes.child_process import program_start
from osmosis_ai.sandbox.bubblewrap import SandboxedProgram
from osmosis_ai.sandbox.control_groups import Delegation, RunGroup, RunLimits, hierarchy_mount
from osmosis_ai.sandbox.isolation import check_sandbox

# uvicorn ends by the signal that stopped it, with the handler that was there before.
WRITE_CPU_TIME = """
import os, signal, time
from pathlib import Path

def write_cpu_time(*_):
    Path(os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"], "cpu_s").write_text(str(time.process_time()))
    raise SystemExit

signal.signal(signal.SIGTERM, write_cpu_time)
"""


@contextlib.contextmanager
def control_group() -> Iterator[RunGroup | None]:
    mount, group = hierarchy_mount(), None
    with contextlib.suppress(OSError):
        group = RunGroup.make(Delegation(mount, ()), "bench", RunLimits()) if mount is not None else None
    try:
        yield group
    finally:
        if group is not None:
            group.close()


def run(group: RunGroup | None, program: Sequence[str] | SandboxedProgram, cwd: Path) -> tuple[float, float]:
    """Run a program to its end; return seconds and CPU seconds."""

    def used_s() -> float:
        if group is None:
            return children_cpu_s()
        return int((group.path / "cpu.stat").read_text().partition("usage_usec")[2].split()[0]) / 1e6

    began, cpu = time.perf_counter(), used_s()
    with program_start(program, os.environ) as begun:
        command = begun.command if group is None else group.command(begun.command, "all")
        done = subprocess.run(
            command, cwd=cwd, env=begun.env, pass_fds=begun.fds, capture_output=True, text=True
        )
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed: {done.stderr[-2000:]}")
    return time.perf_counter() - began, used_s() - cpu


def measure_starts(group: RunGroup | None, directory: Path, times: int) -> list[Row]:
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
            "ms": round(1000 * median(seconds, 5), 1),
            "least ms": round(1000 * min(seconds), 1),
        }
        rows.append(row | ({"CPU ms": round(1000 * median(cpu_s, 5), 1)} if group else {}))
    return rows


def run_cpu_s(group: RunGroup | None, workspace: Path, rows: int, isolate: bool) -> float:
    """Return the CPU seconds of one evaluation and of all processes that it started."""
    command = [
        *OSMOSIS,
        "eval",
        "run",
        "configs/eval/multiply.toml",
        "--rows",
        f"0-{rows - 1}",
        "--name",
        "bench",
    ]
    command += ["--fresh", "--yes", "--json", "--servers", "1", *(["--isolate"] if isolate else [])]
    _, used_s = run(group, command, workspace)
    if isolate and group is None:
        used_s += float((workspace / ".osmosis/evals/bench/rollout_trials/cpu_s").read_text())
    return used_s


def make_workspace(directory: Path) -> Path:
    """Copy this repository's samples, with a server that writes down its CPU time."""
    for name in ("configs", "data", "rollouts"):
        shutil.copytree(REPOSITORY / name, directory / name)
    main_file = directory / "rollouts/multiply/main.py"
    head, found, rest = main_file.read_text().partition("\nimport ")
    main_file.write_text(f"{head}{WRITE_CPU_TIME}{found}{rest}")
    subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
    return directory


def main() -> None:
    given = options(__doc__, rows=100, runs=5, starts=100)
    with scratch() as directory, control_group() as group:
        workspace = make_workspace(directory / "workspace")
        results = measure_starts(group, directory, given.starts)
        taken: dict[bool, list[float]] = {False: [], True: []}
        for number in range(given.runs):
            for isolate in (number % 2 == 0, number % 2 != 0):
                taken[isolate].append(run_cpu_s(group, workspace, given.rows, isolate))
    alone, sandboxed = taken[False], taken[True]
    ratios = [ours / plain for plain, ours in zip(alone, sandboxed, strict=True)]
    row = {
        "CPU s": median(alone),
        "CPU s sandboxed": median(sandboxed),
        "ratio in sum": round(sum(sandboxed) / sum(alone), 3),
    }
    row |= {"median": median(ratios, 3), "least": round(min(ratios), 3), "most": round(max(ratios), 3)}
    report(given, [*results, row | {"counted by": "control group" if group else "ended children"}])


if __name__ == "__main__":
    main()
