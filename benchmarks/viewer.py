"""Time, CPU time, size and memory of the viewer's pages of large runs, without a network between."""

from __future__ import annotations

import gzip
import json
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import harness as bench

ATTEMPTS = 4
PAGES = {
    "run list": "/evals", "run list, by reward": "/evals?sort=reward", "run": "/evals/large",
    "samples": "/evals/large/samples",
    "samples, by reward, failed": "/evals/large/samples?outcome=failed&sort=reward",
    "samples, searched": "/evals/large/samples?q=no+such+words", "conversation": "/evals/large/samples/0.0",
}  # fmt: skip
CONVERSATION = {
    "schema_version": "ATIF-v1.7",
    "session_id": "row-0-run-0",
    "agent": {"name": "math", "version": "1"},
    "steps": [
        {"step_id": step, "source": "user" if step % 2 else "agent", "message": "What is 6 times 7? " * 20}
        for step in range(1, 201)
    ],
}


def write_run(directory: Path, samples: int) -> None:
    """Write a run as `osmosis eval run` leaves it: manifest, journal, metrics and one conversation."""
    from osmosis_ai.evaluation.local_results import read_local_results
    from osmosis_ai.evaluation.manifest import Manifest
    from osmosis_ai.evaluation.run_directory import RunDirectory

    rows = max(samples // ATTEMPTS, 1)
    inputs = {
        "dataset": {"sha256": "d" * 64, "selected_source_rows": f"0-{rows - 1}"}, "n": ATTEMPTS, "seed": 1,
        "model_path": "osmosis/tiny",
        "rollout": {"name": "math", "entrypoint": "main.py", "source_digest": "5" * 64},
    }  # fmt: skip
    directory.mkdir(parents=True)
    provenance = {"dataset_name": "questions", "config": "configs/eval/math.toml"}
    Manifest(directory.name, inputs, provenance).write(directory / "manifest.json")
    run = RunDirectory(directory)
    run.create()
    with run.events.open("wb") as journal:
        for place in range(rows * ATTEMPTS):
            row, attempt = divmod(place, ATTEMPTS)
            failed = (row + attempt) % 50 == 0
            failure = {
                "status": "failed", "boundary": "provider", "category": "timeout",
                "error": "the provider did not answer within 60 s",
            }  # fmt: skip
            reward = None if failed else (row * 7 + attempt) % 11 / 10
            journal.write(bench.result(row, attempt, reward=reward, **(failure if failed else {})))
    (run.trajectories / "row_0_run_0.json").write_text(json.dumps(CONVERSATION))
    metrics = read_local_results(directory).metrics
    run.write_results({"duration_ms": 1_000_000}, metrics, journal_bytes=run.events.stat().st_size)


def write_small_runs(root: Path, count: int) -> None:
    write_run(root / "small", ATTEMPTS)
    texts = {
        name: (root / "small" / name).read_text()
        for name in ("manifest.json", "metrics.json", "events.jsonl")
    }
    for number in range(count):
        directory = root / f"small-{number:05d}"
        directory.mkdir()
        for name, text in texts.items():
            (directory / name).write_text(text.replace('"small"', f'"{directory.name}"'))


def look(root: Path, cache: Path, repeat: int) -> tuple[list[dict[str, Any]], float]:
    """Ask for every page, first with an empty cache; return their figures and the peak memory of this process."""
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from osmosis_ai.ui.pages import ShellView
    from osmosis_ai.viewer.access import Viewing
    from osmosis_ai.viewer.local.source import LocalSource
    from osmosis_ai.viewer.routes import viewer_router

    source, app = LocalSource(root, cache_dir=cache), FastAPI()
    app.include_router(viewer_router(lambda: Viewing(source, ShellView(), is_local=True)))
    client = TestClient(app)

    def ask(path: str, times: int) -> dict[str, float]:
        seconds, used, size = [], [], 0
        for _ in range(times):
            began, cpu = time.perf_counter(), time.process_time()
            reply = client.get(path)
            seconds.append(time.perf_counter() - began)
            used.append(time.process_time() - cpu)
            assert reply.status_code == 200, reply.text
            size = len(gzip.compress(reply.content))
        return {
            "ms": round(bench.median(seconds, 5) * 1e3, 1),
            "CPU ms": round(bench.median(used, 5) * 1e3, 1),
            "kB gzip": size / 1e3,
        }

    rows = [{"page": f"{name}, first"} | ask(PAGES[name], 1) for name in ("run list", "run", "samples")]
    for name, path in PAGES.items():
        ask(path, 1)
        rows.append({"page": name} | ask(path, repeat))
    return rows, bench.peak_mib()


def main() -> None:
    from osmosis_ai.ui.pages import assets

    given = bench.options(__doc__, samples=100_000, runs=10_000, repeat=5)
    with bench.scratch() as directory:
        evals = directory / ".osmosis" / "evals"
        write_run(evals / "large", given.samples)
        with get_context("spawn").Pool(1) as process:
            _, alone = process.apply(look, (directory, directory / "cache of one run", 1))
        write_small_runs(evals, given.runs)
        with get_context("spawn").Pool(1) as process:
            pages, peak = process.apply(look, (directory, directory / "cache", given.repeat))
    rows: list[bench.Row] = [
        *pages,
        {"peak MiB, large run": round(alone, 1), "peak MiB, all runs": round(peak, 1)},
    ]
    sizes = {"css": 0, "js": 0}
    for name, asset in assets().items():
        kind = name.rpartition(".")[2]
        if kind in sizes:
            sizes[kind] += len(gzip.compress(asset.content))
    bench.report(given, [*rows, {f"{kind} kB gzip": size / 1e3 for kind, size in sizes.items()}])


if __name__ == "__main__":
    main()
