"""Attempts per second, CPU time and memory of `osmosis eval run` with a model of fixed latency.

The rollout makes one model call with each client in turn: `none` at all, the two clients of the rollout context (`http`,
`ours`), and a new `openai.AsyncOpenAI` in each attempt.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import harness as bench


def evaluate(
    workspace: Path, base_url: str, latency_ms: float, rows: int, in_flight: int, client: str
) -> dict[str, float]:
    """Run one evaluation; return seconds, CPU seconds of server and engine, and the engine's peak memory."""
    usage_file = workspace / "usage.json"
    settings = {
        "BENCH_CLIENT": client, "BENCH_LATENCY_S": str(latency_ms / 1000), "BENCH_REPORT": str(usage_file),
    }  # fmt: skip
    command = [
        *bench.OSMOSIS, "eval", "run", "configs/eval/bench.toml", "--yes", "--json", "--fresh", "--name",
        "bench",
    ]  # fmt: skip
    command += ["--rows", f"0-{rows - 1}", "--max-in-flight", str(in_flight), "--servers", "1"]
    process = subprocess.Popen(
        command, cwd=workspace, env=bench.model_settings(base_url) | settings, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or json.loads(out)["resource"]["succeeded"] != rows:
        raise SystemExit(f"the run with the client {client} failed: {out.decode()[-2000:]}")
    server = json.loads(usage_file.read_text())
    return {
        "seconds": server["seconds"],
        "server_s": server["cpu_s"],
        # The CPU time of a process includes that of the children it has waited for.
        "engine_s": used.ru_utime + used.ru_stime - server["total_cpu_s"],
        "peak_mib": used.ru_maxrss / 1024,
    }


def main() -> None:
    given = bench.options(
        __doc__, latency_ms=50.0, in_flight=[32, 128, 512], clients=list(bench.CLIENTS), rows=1000, runs=5,
        memory_rows=[1_000, 10_000],
    )  # fmt: skip
    results: list[bench.Row] = []
    with bench.scratch() as directory:
        workspace = bench.make_workspace(directory, max(*given.memory_rows, given.rows, 1))
        with bench.stand_in_model(given.latency_ms) as url:
            for client in ("http", "none"):  # the first fills caches, the second is the cost of starting
                start_s = evaluate(workspace, url, given.latency_ms, 1, 1, client)["engine_s"]
            places = [(client, in_flight) for client in given.clients for in_flight in given.in_flight]
            runs: dict[tuple[str, int], list[dict[str, float]]] = {place: [] for place in places}
            for _ in range(given.runs):
                for client, in_flight in places:
                    found = evaluate(workspace, url, given.latency_ms, given.rows, in_flight, client)
                    runs[client, in_flight].append(found)
        for (client, in_flight), found_runs in runs.items():
            seconds, engine_s, server_s = (
                bench.median([each[name] for each in found_runs], 4)
                for name in ("seconds", "engine_s", "server_s")
            )
            row = {
                "client": client, "in flight": in_flight, "attempts/s": round(given.rows / seconds, 1),
                "ideal/s": round(min(in_flight, given.rows) / given.latency_ms * 1000),
                "engine ms": round((engine_s - start_s) * 1000 / given.rows, 2),
                "server ms": round(server_s * 1000 / given.rows, 2),
            }  # fmt: skip
            results.append(row)
        with bench.stand_in_model(1.0) as url:
            for rows in given.memory_rows:
                row = {
                    "rows": rows,
                    "peak MiB": round(evaluate(workspace, url, 1.0, rows, 64, "http")["peak_mib"], 1),
                }  # fmt: skip
                results.append(row)
    bench.report(given, results)


if __name__ == "__main__":
    main()
