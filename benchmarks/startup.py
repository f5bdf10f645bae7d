"""Time until a command answers, as a ratio to the start of a bare interpreter, which hardly depends on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import harness as bench

COMPLETION = {"_OSMOSIS_COMPLETE": "complete_bash", "COMP_WORDS": "osmosis ev", "COMP_CWORD": "1"}
TARGETS = {
    "--version": 6, "--help": 12, "eval --help": 12, "eval run --help": 12, "platform connect --help": 12,
    "": None,
}  # fmt: skip


def seconds(command: list[str], variables: dict[str, str], directory: Path) -> float:
    began = time.perf_counter()
    subprocess.run(
        command, cwd=directory, env=os.environ | variables, stdin=subprocess.DEVNULL, capture_output=True,
        check=True,
    )  # fmt: skip
    return time.perf_counter() - began


def main() -> None:
    given = bench.options(__doc__, runs=21)
    script = Path(sys.executable).with_name("osmosis")
    program = [str(script)] if script.exists() else list(bench.OSMOSIS)
    rows = []
    with bench.scratch() as directory:
        for words, target in TARGETS.items():
            command, variables = [*program, *words.split()], {} if words else COMPLETION
            seconds(command, variables, directory)  # compiles, and fills the disk cache
            bare, taken = [], []
            for _ in range(given.runs):
                bare.append(seconds([sys.executable, "-c", "pass"], {}, directory))
                taken.append(seconds(command, variables, directory))
            ratio = bench.median(taken, 4) / bench.median(bare, 4)
            ms, bare_ms = (round(1000 * bench.median(each, 4), 1) for each in (taken, bare))
            row = {
                "osmosis": words or "(completion)", "ms": ms, "bare ms": bare_ms, "starts": round(ratio, 1),
            }  # fmt: skip
            rows.append(row | {"target": target or ""})
    bench.report(given, rows)


if __name__ == "__main__":
    main()
