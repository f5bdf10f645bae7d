"""What the sandbox costs a run: a start of a program in it, and the CPU time of a whole `eval run --isolate`.

`/bin/true` is started alone and in the sandbox, in turns; shown are how long that takes and what CPU time, the median and
the least, because a machine with other work makes most starts wait. Runs of the sample rollout `multiply` on the built-in
model are made with and without `--isolate`, in turns, and the CPU time of the command and of all that it started is
compared: in sum, and as ratios of pairs, their median, least and most.

CPU time is that of a control group (cgroup v2) where one can be made, which counts every process. Elsewhere it is what the
kernel says of children that ended; bubblewrap hands on no times of what ran in it, so there the rollout's server writes down
its own when it ends, and nothing is said of a start's.

    python benchmarks/sandbox.py                       # two minutes
    python benchmarks/sandbox.py --rows 4 --runs 1     # seconds
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from osmosis_ai.processes.child_process import program_start
from osmosis_ai.sandbox.bubblewrap import SandboxedProgram
from osmosis_ai.sandbox.control_groups import Delegation, RunGroup, RunLimits, hierarchy_mount
from osmosis_ai.sandbox.isolation import check_sandbox

REPOSITORY = Path(__file__).parents[1]
CONFIG = "configs/eval/multiply.toml"
# uvicorn ends by the signal that stopped it, with the handler that was there before.
SPENT = """
import os, signal, time
from pathlib import Path

def tell(*_):
    Path(os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"], "cpu_s").write_text(str(time.process_time()))
    raise SystemExit

signal.signal(signal.SIGTERM, tell)
"""


@contextmanager
def counting_group() -> Iterator[RunGroup | None]:
    """Yield a control group in which all that a command starts is counted; None where none can be made."""
    mount = hierarchy_mount()
    try:
        group = RunGroup.make(Delegation(mount, ()), "bench", RunLimits()) if mount is not None else None
    except OSError:
        group = None
    try:
        yield group
    finally:
        if group is not None:
            group.close()


class Meter:
    """Runs commands, and says what they took.

    Args:
        group: in which they are counted; None where there is none.
    """

    def __init__(self, group: RunGroup | None) -> None:
        self.group = group

    def run(self, program: Sequence[str] | SandboxedProgram, cwd: Path) -> tuple[float, float]:
        """Run a command to its end; return its seconds, and those of CPU time as far as they are known."""
        began, before_s = time.perf_counter(), self._cpu_s()
        with program_start(program, os.environ) as begun:
            command = begun.command if self.group is None else self.group.command(begun.command, "all")
            done = subprocess.run(
                command, cwd=cwd, env=begun.env, pass_fds=begun.fds, capture_output=True, text=True
            )
        if done.returncode != 0:
            raise SystemExit(f"`{command[0]}` failed: {done.stderr[-2000:]}")
        return time.perf_counter() - began, self._cpu_s() - before_s

    def _cpu_s(self) -> float:
        if self.group is not None:
            said = (self.group.path / "cpu.stat").read_text().split()
            return int(said[said.index("usage_usec") + 1]) / 1e6
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime


def starts_ms(meter: Meter, root: Path, times: int) -> dict[str, list[tuple[float, float]]]:
    """Return, alone and sandboxed, the milliseconds of each start, and those of CPU time."""
    capability = check_sandbox()
    if not capability.works:
        raise SystemExit(f"{capability.said}; {capability.remedy}")
    source = root / "source"
    source.mkdir()
    sandbox = capability.sandbox(source)
    commands: dict[str, Sequence[str] | SandboxedProgram] = {
        "alone": ["/bin/true"],
        "sandboxed": sandbox.command(["/bin/true"], cwd=sandbox.source, writable=[]),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(times):
        for name, command in commands.items():
            seconds, cpu = meter.run(command, root)
            taken[name].append((1000 * seconds, 1000 * cpu))
    return taken


def cpu_s(meter: Meter, workspace: Path, rows: int, isolate: bool) -> float:
    """Make one run; return the CPU seconds of the command and of all that it started."""
    command = [sys.executable, "-m", "osmosis_ai", "eval", "run", CONFIG, "--rows", f"0-{rows - 1}"]
    command += ["--name", "bench", "--fresh", "--yes", "--json", "--servers", "1"]
    _, seen_s = meter.run([*command, *(["--isolate"] if isolate else [])], workspace)
    if not isolate or meter.group is not None:
        return seen_s
    return seen_s + float((workspace / ".osmosis/evals/bench/rollout_trials/cpu_s").read_text())


def workspace_below(directory: Path) -> Path:
    """Return a workspace directory with this repository's samples, whose server says what it took."""
    workspace = directory / "workspace"
    for name in ("configs", "data", "rollouts"):
        shutil.copytree(REPOSITORY / name, workspace / name)
    main_file = workspace / "rollouts/multiply/main.py"
    head, begins, rest = main_file.read_text().partition("\nimport ")
    main_file.write_text(f"{head}{SPENT}{begins}{rest}")
    subprocess.run(["git", "init", "--quiet", str(workspace)], check=True)
    return workspace


def say_starts(starts: dict[str, list[tuple[float, float]]], counted: bool) -> None:
    """Print what a start takes."""
    for which, what in enumerate(["wall time", *(["CPU time"] if counted else [])]):
        alone, sandboxed = ([start[which] for start in starts[name]] for name in ("alone", "sandboxed"))
        for words, of in (("median", statistics.median), ("least", min)):
            more_ms = of(sandboxed) - of(alone)
            print(f"a start, {what}, {words}: {of(alone):.1f} ms alone, {more_ms:.1f} ms more sandboxed")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100, help="of four attempts each")
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs")
    parser.add_argument("--starts", type=int, default=100)
    options = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory, counting_group() as group:
        meter, workspace = Meter(group), workspace_below(Path(directory))
        starts = starts_ms(meter, Path(directory), options.starts)
        for number in range(options.runs):
            # Whoever comes first does not always meet the same machine.
            order = (False, True) if number % 2 else (True, False)
            taken = {isolate: cpu_s(meter, workspace, options.rows, isolate) for isolate in order}
            pairs.append((taken[False], taken[True]))
    ratios = sorted(sandboxed / alone for alone, sandboxed in pairs)
    counted = "by a control group" if group is not None else "of children that ended"
    print(
        f"load {os.getloadavg()[0]:.1f}, {options.starts} starts, {options.runs} pairs of runs of {options.rows} rows; CPU time {counted}"
    )
    say_starts(starts, group is not None)
    in_sum = sum(sandboxed for _, sandboxed in pairs) / sum(alone for alone, _ in pairs)
    print(
        f"a run: {in_sum:.3f}x the CPU time in sum, {statistics.median(ratios):.3f}x in the median ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )
    print(json.dumps({"cpu_s": pairs, "ratios": ratios}))


if __name__ == "__main__":
    main()
