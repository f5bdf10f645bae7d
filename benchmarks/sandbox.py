"""What the sandbox costs a run: a start of a program in it, and the CPU time of a whole `eval run --isolate`.

Starts of `/bin/true` are timed alone and in the sandbox, in turns; shown is the median difference. Runs of the sample
rollout `multiply` on the built-in model are made with and without `--isolate`, in turns, and the CPU time of the
command and of all that it started is compared: ratios of pairs, their median, least and most. Bubblewrap hands on no
times of what ran in it, so the rollout's server writes down its own when it ends, in both.

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
from pathlib import Path

from osmosis_ai.sandbox import check_sandbox

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


def starts_ms(root: Path, times: int) -> tuple[float, float]:
    """Return the median milliseconds of a start alone and in the sandbox."""
    capability = check_sandbox()
    if not capability.works:
        raise SystemExit(f"{capability.said}; {capability.remedy}")
    source = root / "source"
    source.mkdir()
    sandbox = capability.sandbox(source)
    commands = [["/bin/true"], sandbox.command(["/bin/true"], cwd=sandbox.source, writable=[])]
    taken: list[list[float]] = [[], []]
    for _ in range(times):
        for command, found in zip(commands, taken, strict=True):
            begun = time.perf_counter()
            subprocess.run(command, check=True)
            found.append(1000 * (time.perf_counter() - begun))
    return statistics.median(taken[0]), statistics.median(taken[1])


def cpu_s(workspace: Path, rows: int, isolate: bool) -> float:
    """Make one run; return the CPU seconds of the command and of all that it started."""
    command = [sys.executable, "-m", "osmosis_ai", "eval", "run", CONFIG, "--rows", f"0-{rows - 1}"]
    command += [
        "--name",
        "bench",
        "--fresh",
        "--yes",
        "--json",
        "--servers",
        "1",
        *(["--isolate"] if isolate else []),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the run failed: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    server_s = float((workspace / ".osmosis/evals/bench/rollout_trials/cpu_s").read_text())
    seen_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seen_s + (server_s if isolate else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100, help="of four attempts each")
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs")
    parser.add_argument("--starts", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        workspace = Path(directory, "workspace")
        for name in ("configs", "data", "rollouts"):
            shutil.copytree(REPOSITORY / name, workspace / name)
        main_file = workspace / "rollouts/multiply/main.py"
        head, begins, rest = main_file.read_text().partition("\nimport ")
        main_file.write_text(f"{head}{SPENT}{begins}{rest}")
        subprocess.run(["git", "init", "--quiet", str(workspace)], check=True)
        alone_ms, sandboxed_ms = starts_ms(Path(directory), options.starts)
        pairs = []
        for number in range(options.runs):
            # Whoever comes first does not always meet the same machine.
            order = (False, True) if number % 2 else (True, False)
            taken = {isolate: cpu_s(workspace, options.rows, isolate) for isolate in order}
            pairs.append((taken[False], taken[True]))
    ratios = sorted(sandboxed / alone for alone, sandboxed in pairs)
    print(
        f"load {os.getloadavg()[0]:.1f}, {options.starts} starts, {options.runs} pairs of runs of {options.rows} rows"
    )
    print(
        f"a start: {alone_ms:.1f} ms alone, {sandboxed_ms:.1f} ms sandboxed, {sandboxed_ms - alone_ms:.1f} ms more"
    )
    print(f"a run: {statistics.median(ratios):.3f}x the CPU time ({ratios[0]:.3f} to {ratios[-1]:.3f})")
    print(json.dumps({"start_ms": [alone_ms, sandboxed_ms], "cpu_s": pairs, "ratios": ratios}))


if __name__ == "__main__":
    main()
