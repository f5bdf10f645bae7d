"""How long the command line takes to answer, in bare interpreter starts.

Every command and `python -c pass` run alternately in fresh processes, so that load on the machine hits
both alike; reported is the ratio of the medians, which hardly depends on the machine.

    python benchmarks/startup.py [--runs 21] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AIMS = {
    "--version": 6.0,
    "--help": 12.0,
    "eval --help": 12.0,
    "eval run --help": 12.0,
    "platform connect --help": 12.0,
    "completion of `ev`": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=21, help="runs of each command (default: 21)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    figures = measure(options.runs)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(figures)


def measure(runs: int) -> dict[str, object]:
    """Time every command and return medians in milliseconds with their ratio to a bare start."""
    program = program_command()
    completing = {"_OSMOSIS_COMPLETE": "complete_bash", "COMP_WORDS": "osmosis ev", "COMP_CWORD": "1"}
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "--version": ([*program, "--version"], {}),
        "--help": ([*program, "--help"], {}),
        "eval --help": ([*program, "eval", "--help"], {}),
        "eval run --help": ([*program, "eval", "run", "--help"], {}),
        "platform connect --help": ([*program, "platform", "connect", "--help"], {}),
        "completion of `ev`": (program, completing),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for name, (command, env) in commands.items():
            run(command, env, directory)  # compiles and fills the disk cache
            for _ in range(runs):
                bare.append(run([sys.executable, "-c", "pass"], {}, directory))
                times[name].append(run(command, env, directory))
    start = statistics.median(bare)
    return {
        "python": sys.version.split()[0],
        "runs": runs,
        "bare_ms": round(start * 1000, 1),
        "commands": [
            {
                "command": name,
                "median_ms": round(statistics.median(seconds) * 1000, 1),
                "bare_starts": round(statistics.median(seconds) / start, 1),
                "aim": AIMS[name],
            }
            for name, seconds in times.items()
        ],
    }


def run(command: list[str], env: dict[str, str], directory: str) -> float:
    """Return the seconds one process takes; it must succeed."""
    started = time.perf_counter()
    subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - started


def program_command() -> list[str]:
    """Return the installed `osmosis` beside this interpreter, else the module."""
    script = Path(sys.executable).with_name("osmosis")
    return [str(script)] if script.exists() else [sys.executable, "-m", "osmosis_ai"]


def print_table(figures: dict[str, object]) -> None:
    print(
        f"Python {figures['python']}, median of {figures['runs']} runs; a bare start takes {figures['bare_ms']} ms"
    )
    print(f"{'osmosis …':<26}{'ms':>8}{'bare starts':>14}{'aim':>8}")
    for row in figures["commands"]:  # type: ignore[attr-defined]
        aim = f"<= {row['aim']:g}" if row["aim"] else ""
        print(f"{row['command']:<26}{row['median_ms']:>8}{row['bare_starts']:>14}{aim:>8}")


if __name__ == "__main__":
    main()
