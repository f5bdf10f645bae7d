"""How long `osmosis eval compare` takes with two large runs, and how much memory, against reading their journals alone.

The command is a process of its own; the best of the repetitions counts, since other work on the machine can only slow it
down. Peak memory is read from /proc, so this runs on Linux.

    python benchmarks/compare.py [--rows 50000] [--attempts 4] [--repeat 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.manifest import Manifest

COMPARE = """
from osmosis_ai.cli.main import main
status = main(["eval", "compare", sys.argv[1], sys.argv[2], "--json"])
"""
READ = """
status = 0
for run in sys.argv[1:3]:
    with open(Path(run) / "events.jsonl", "rb") as lines:
        for line in lines:
            orjson.loads(line)
"""
MEASURE = """
import io, json, os, re, sys, time
from contextlib import redirect_stdout
from pathlib import Path
import orjson
started, used = time.perf_counter(), time.process_time()
with redirect_stdout(io.StringIO()):
{code}
print(json.dumps({{
    "status": status,
    "seconds": time.perf_counter() - started,
    "cpu_seconds": time.process_time() - used,
    # Not ru_maxrss: a child starts with the peak of the process that forked it.
    "peak_megabytes": int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024,
}}))
"""


def write_run(directory: Path, rows: int, attempts: int, *, seed: int) -> None:
    """Write a run as `osmosis eval run` leaves it: a manifest and a sealed journal."""
    import numpy as np

    directory.mkdir(parents=True)
    inputs = {
        "dataset": {"sha256": "d" * 64, "selected_source_rows": f"0-{rows - 1}"},
        "n": attempts,
        "seed": seed,
        "model_path": "osmosis/tiny",
        "rollout": {"name": "math", "entrypoint": "main.py", "source_digest": "5" * 64},
    }
    Manifest(directory.name, inputs, {}, grader_digest="9" * 64).write(directory / "manifest.json")
    hard = np.random.default_rng(0).beta(1, 1, rows)
    passed = np.random.default_rng(seed).random((rows, attempts)) < hard[:, None]
    with (directory / "events.jsonl").open("wb") as journal:
        journal.writelines(_lines(passed.tolist()))


def _lines(passed: list[list[bool]]) -> Iterator[bytes]:
    for row, attempts in enumerate(passed):
        for attempt, passes in enumerate(attempts):
            record = TerminalRecord(
                row_index=row,
                run_index=attempt,
                rollout_id=f"row-{row}-run-{attempt}",
                status="success",
                duration_ms=1000 + row % 700,
                source_row_index=row,
                reward=float(passes),
                tokens=100 + attempt,
                cost_usd=0.01,
                model_latency_ms=500.0,
                row_digest=f"{row:032x}",
            )
            yield record.to_line()


def measure(code: str, runs: tuple[Path, Path], repeat: int) -> dict[str, float]:
    """Run ``code`` on two runs in fresh processes and return the best figures."""
    indented = "".join(f"    {line}\n" for line in code.strip().splitlines())
    command = [sys.executable, "-c", MEASURE.format(code=indented), *map(str, runs)]
    found: list[dict[str, float]] = []
    for _ in range(repeat):
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=runs[0].parent)
        found.append(json.loads(done.stdout))
        assert found[-1]["status"] == 0, done.stderr
    names = ("seconds", "cpu_seconds", "peak_megabytes")
    return {name: round(min(each[name] for each in found), 2) for name in names}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure a comparison of two large runs.")
    parser.add_argument("--rows", type=int, default=50_000, help="of each run (default: 50000)")
    parser.add_argument("--attempts", type=int, default=4, help="on each row (default: 4)")
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many runs counts (default: 3)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch) / "base", Path(scratch) / "next"
        for seed, run in enumerate(runs):
            write_run(run, options.rows, options.attempts, seed=seed + 1)
        figures: dict[str, Any] = {
            "rows": options.rows,
            "attempts": options.attempts,
            "reading the journals": measure(READ, runs, options.repeat),
            "osmosis eval compare": measure(COMPARE, runs, options.repeat),
        }
    print(f"two runs of {options.rows:,} rows x {options.attempts}")
    print(f"{'':<22} {'s':>7} {'CPU s':>7} {'peak MiB':>9}")
    for name in ("reading the journals", "osmosis eval compare"):
        run = figures[name]
        print(f"{name:<22} {run['seconds']:>7.2f} {run['cpu_seconds']:>7.2f} {run['peak_megabytes']:>9.1f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
