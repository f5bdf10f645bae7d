"""Time to resume a run with many finished attempts, against one with few.

`eval run` resumes each run under a time budget that is used up: it reads the journal, starts the rollout server, starts
no attempt and writes its results.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import harness as bench


def session(workspace: Path, base_url: str) -> tuple[float, float]:
    """Resume the run; return seconds and CPU seconds."""
    command = [
        *bench.OSMOSIS, "eval", "run", "configs/eval/bench.toml", "--name", "bench", "--yes", "--json",
        "--max-time", "0.001",
    ]  # fmt: skip
    began, cpu = time.perf_counter(), bench.children_cpu_s()
    done = subprocess.run(
        command, cwd=workspace, env=bench.model_settings(base_url), capture_output=True, text=True
    )
    taken = time.perf_counter() - began, bench.children_cpu_s() - cpu
    if '"kind":"budget"' not in (workspace / ".osmosis/evals/bench/logs.txt").read_text().splitlines()[-2]:
        raise SystemExit(
            f"the session did not stop by its budget: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return taken


def write_results(run: Path, finished: int) -> None:
    """Write the journal and conversations of finished attempts."""
    with (run / "events.jsonl").open("wb") as journal:
        for row in range(finished):
            rollout_id = f"{row:032x}"
            document = json.dumps({"trajectory_id": rollout_id, "steps": []})
            attempt = run / "rollout_trials" / rollout_id
            attempt.mkdir(parents=True)
            (attempt / "trajectory.json").write_text(document)
            (run / "trajectories" / f"row_{row}_run_0.json").write_text(document)
            journal.write(bench.result(row, rollout_id=rollout_id))


def main() -> None:
    given = bench.options(__doc__, few=1_000, many=100_000, runs=3)
    taken: dict[int, list[tuple[float, float]]] = {given.few: [], given.many: []}
    with bench.scratch() as directory, bench.stand_in_model(1.0) as url:
        for finished in taken:
            workspace = bench.make_workspace(directory / str(finished), finished + 1)
            session(workspace, url)
            write_results(workspace / ".osmosis/evals/bench", finished)
            session(workspace, url)
        for _ in range(given.runs):
            for finished, times in taken.items():
                times.append(session(directory / str(finished), url))
    best = {finished: [min(each) for each in zip(*times, strict=True)] for finished, times in taken.items()}
    (few_s, few_cpu), (many_s, many_cpu) = best.values()
    rows = [{"finished": n, "seconds": round(s, 2), "CPU s": round(cpu, 2)} for n, (s, cpu) in best.items()]
    ratio = {"ratio": round(many_s / few_s, 2), "CPU ratio": round(many_cpu / few_cpu, 2)}
    bench.report(given, [*rows, ratio])


if __name__ == "__main__":
    main()
