"""Time to resume a run with many finished attempts, against one with few.

`eval run` resumes each run under a time budget that is used up: it reads the journal, starts the rollout server, starts
no attempt and writes its results.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from harness import (
    OSMOSIS,
    children_cpu_s,
    make_workspace,
    model_settings,
    options,
    report,
    scratch,
    stand_in_model,
)

from osmosis_ai.controller.record import TerminalRecord


def session(workspace: Path, base_url: str) -> tuple[float, float]:
    """Resume the run; return seconds and CPU seconds."""
    command = [
        *OSMOSIS,
        "eval",
        "run",
        "configs/eval/bench.toml",
        "--name",
        "bench",
        "--yes",
        "--json",
        "--max-time",
        "0.001",
    ]
    began, cpu = time.perf_counter(), children_cpu_s()
    done = subprocess.run(
        command, cwd=workspace, env=model_settings(base_url), capture_output=True, text=True
    )
    taken = time.perf_counter() - began, children_cpu_s() - cpu
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
            record = TerminalRecord(
                row_index=row,
                run_index=0,
                rollout_id=rollout_id,
                status="success",
                duration_ms=1000 + row % 700,
                source_row_index=row,
                reward=float(row % 3 > 0),
                tokens=100,
                prompt_tokens=60,
                completion_tokens=40,
                model_calls=1,
                cost_usd=0.01,
                model_latency_ms=500.0,
                row_digest=f"{row:032x}",
                input=f"Compute {row}",
                output="done",
            )
            journal.write(record.to_line())


def main() -> None:
    given = options(__doc__, few=1_000, many=100_000, runs=3)
    taken: dict[int, list[tuple[float, float]]] = {given.few: [], given.many: []}
    with scratch() as directory, stand_in_model(1.0) as url:
        for finished in taken:
            workspace = make_workspace(directory / str(finished), finished + 1)
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
    report(given, [*rows, ratio])


if __name__ == "__main__":
    main()
