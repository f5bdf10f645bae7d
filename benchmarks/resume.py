"""Compare the time to resume a run with many finished attempts and one with few.

`eval run` continues each run under a time budget that is already used up: it reads the journal, starts the rollout server, starts
no attempt, and writes its results. The best of several sessions is shown, in seconds of wall clock and processor, and their ratio.

    python benchmarks/resume.py                                   # two minutes
    python benchmarks/resume.py --few 2 --many 8 --runs 1         # seconds
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine import make_workspace, stand_in_model

from osmosis_ai.controller.record import TerminalRecord


class Run:
    """A run of ``finished`` results, and of one attempt that is left."""

    def __init__(self, workspace: Path, finished: int, base_url: str) -> None:
        self._workspace = workspace
        self.finished = finished
        self._environment = {
            **os.environ,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": "not-checked",
            "BENCH_CLIENT": "http",
            "BENCH_LATENCY_S": "0.001",
            "BENCH_REPORT": os.devnull,
        }
        make_workspace(workspace, finished + 1)
        self.directory = workspace / ".osmosis/evals/bench"

    def prepare(self) -> None:
        """Let a session begin the run, write its results, and let another find them."""
        self.session()
        with (self.directory / "events.jsonl").open("wb") as journal:
            for row in range(self.finished):
                journal.write(self._finish(row).to_line())
        self.session()

    def _finish(self, row: int) -> TerminalRecord:
        rollout_id = f"{row:032x}"
        document = json.dumps({"trajectory_id": rollout_id, "steps": []})
        trial = self.directory / "rollout_trials" / rollout_id
        trial.mkdir(parents=True)
        (trial / "trajectory.json").write_text(document)
        (self.directory / "trajectories" / f"row_{row}_run_0.json").write_text(document)
        return TerminalRecord(
            row_index=row,
            run_index=0,
            rollout_id=rollout_id,
            status="success",
            duration_ms=1000 + row % 700,
            source_row_index=row,
            reward=float(row % 3 > 0),
            tokens=100 + row % 50,
            prompt_tokens=60,
            completion_tokens=40 + row % 50,
            model_calls=1,
            cost_usd=0.01,
            model_latency_ms=500.0,
            row_digest=f"{row:032x}",
            input=f"Compute {row}",
            output="done",
        )

    def session(self) -> tuple[float, float]:
        """Go on with the run; return the seconds that took, and those of processors."""
        command = ["eval", "run", "configs/eval/bench.toml", "--name", "bench", "--yes", "--json"]
        before, begun = _used_s(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "osmosis_ai", *command, "--max-time", "0.001"],
            cwd=self._workspace,
            env=self._environment,
            capture_output=True,
            text=True,
        )
        taken = time.perf_counter() - begun, _used_s() - before
        if '"kind":"budget"' not in (self.directory / "logs.txt").read_text().splitlines()[-2]:
            raise SystemExit(
                f"the session did not stop by its budget: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return taken


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def best(sessions: list[tuple[float, float]]) -> dict[str, float]:
    """Return the least seconds: of wall clock and of processors."""
    return {
        name: round(min(taken), 2)
        for name, taken in zip(("wall", "cpu"), zip(*sessions, strict=True), strict=True)
    }


def measure(few: Run, many: Run, runs: int) -> dict[str, dict[str, float]]:
    taken: dict[str, list[tuple[float, float]]] = {"few": [], "many": []}
    for _ in range(runs):
        taken["few"].append(few.session())
        taken["many"].append(many.session())
    return {name: best(sessions) for name, sessions in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--few", type=int, default=1_000, help="finished attempts of the one run")
    parser.add_argument("--many", type=int, default=100_000, help="and of the other")
    parser.add_argument("--runs", type=int, default=3, help="timed sessions of each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory, stand_in_model(1.0) as base_url:
        few = Run(Path(directory, "few"), options.few, base_url)
        many = Run(Path(directory, "many"), options.many, base_url)
        few.prepare()
        many.prepare()
        figures = measure(few, many, options.runs)
    ratio = {name: round(figures["many"][name] / figures["few"][name], 2) for name in ("wall", "cpu")}
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, best of {options.runs}")
    for name, seconds in figures.items():
        print(f"{name}: {seconds['wall']:.2f} s, {seconds['cpu']:.2f} s of processor")
    print(
        f"{options.many:,} finished attempts take {ratio['wall']:.2f}x the time of {options.few:,}, {ratio['cpu']:.2f}x the processor's"
    )
    print(json.dumps({"seconds": figures, "ratio": ratio}))


if __name__ == "__main__":
    main()
