"""How long the viewer's pages of large runs take, how much of them goes over the wire, and how much memory it needs.

Pages are asked for in one fresh process without a network between, as `osmosis view` answers them; CPU seconds count,
since other work on the machine can not slow them down. Peak memory is read from /proc, so this runs on Linux.

    python benchmarks/viewer.py [--samples 100000] [--runs 10000] [--repeat 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ATTEMPTS = 4
PAGES = {
    "run list": "/evals",
    "run list, by reward": "/evals?sort=reward",
    "run": "/evals/large",
    "samples": "/evals/large/samples",
    "samples, by reward, failed": "/evals/large/samples?outcome=failed&sort=reward",
    "samples, searched": "/evals/large/samples?q=no+such+words",
    "conversation": "/evals/large/samples/0.0",
}


def write_large_run(directory: Path, samples: int) -> None:
    """Write a run as `osmosis eval run` leaves it: manifest, journal, metrics and one conversation."""
    from osmosis_ai.evaluation.local_results import read_local_results
    from osmosis_ai.evaluation.run_directory import RunDirectory

    rows = max(samples // ATTEMPTS, 1)
    _manifest(directory, rows)
    found = RunDirectory(directory)
    found.create()
    with found.events.open("wb") as journal:
        journal.writelines(_lines(rows))
    (found.trajectories / "row_0_run_0.json").write_text(json.dumps(_TRAJECTORY))
    counted = found.events.stat().st_size
    found.write_results(
        {"duration_ms": 1_000_000}, read_local_results(directory).metrics, journal_bytes=counted
    )


def write_small_runs(root: Path, count: int, *, with_numbers: bool = True) -> None:
    """Write runs of one row as `osmosis eval run` leaves them, with or without numbers."""
    write_large_run(root / "small", ATTEMPTS)
    manifest, metrics, journal = (
        (root / "small" / name).read_text() for name in ("manifest.json", "metrics.json", "events.jsonl")
    )
    for number in range(count):
        directory = root / f"small-{number:05d}"
        directory.mkdir()
        (directory / "manifest.json").write_text(manifest.replace('"small"', f'"{directory.name}"'))
        (directory / "metrics.json").write_text(metrics if with_numbers else _NO_NUMBERS)
        (directory / "events.jsonl").write_text(journal)


def _manifest(directory: Path, rows: int) -> None:
    from osmosis_ai.evaluation.manifest import Manifest

    directory.mkdir(parents=True)
    inputs = {
        "dataset": {"sha256": "d" * 64, "selected_source_rows": f"0-{rows - 1}"},
        "n": ATTEMPTS,
        "seed": 1,
        "model_path": "osmosis/tiny",
        "rollout": {"name": "math", "entrypoint": "main.py", "source_digest": "5" * 64},
    }
    provenance = {"dataset_name": "questions", "config": "configs/eval/math.toml"}
    Manifest(directory.name, inputs, provenance).write(directory / "manifest.json")


def _lines(rows: int) -> Iterator[bytes]:
    from osmosis_ai.controller.record import TerminalRecord

    for row in range(rows):
        for attempt in range(ATTEMPTS):
            failed = (row + attempt) % 50 == 0
            yield TerminalRecord(
                row_index=row,
                run_index=attempt,
                rollout_id=f"row-{row}-run-{attempt}",
                status="failed" if failed else "success",
                duration_ms=1000 + row % 700,
                source_row_index=row,
                reward=None if failed else (row * 7 + attempt) % 11 / 10,
                tokens=100 + attempt,
                cost_usd=0.01,
                model_latency_ms=500.0,
                row_digest=hashlib.sha256(b"%d" % row).hexdigest()[:32],
                boundary="provider" if failed else None,
                category="timeout" if failed else None,
                error="the provider did not answer within 60 s" if failed else None,
                input=f"What is {row} times {attempt}? Answer with the number alone, and nothing beside it.",
                output=f"The answer is {row * attempt}.",
            ).to_line()


def look(root: Path, cache: Path, repeat: int) -> dict[str, Any]:
    """Ask for every page; run it in a process of its own, whose memory is the viewer's."""
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from osmosis_ai.ui.pages import ShellView
    from osmosis_ai.viewer.access import Viewing
    from osmosis_ai.viewer.local.source import LocalSource
    from osmosis_ai.viewer.routes import viewer_router

    source = LocalSource(root, cache_dir=cache)
    app = FastAPI()
    app.include_router(viewer_router(lambda: Viewing(source, ShellView(), is_local=True)))
    client = TestClient(app)
    first = {name: _asked(client, PAGES[name]) for name in ("run list", "run", "samples")}
    pages = {}
    for name, path in PAGES.items():
        _asked(client, path)
        figures = [_asked(client, path) for _ in range(repeat)]
        pages[name] = {key: statistics.median(each[key] for each in figures) for key in figures[0]}
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024  # type: ignore[index]
    return {"first": first, "pages": pages, "peak_megabytes": round(peak, 1)}


def _looked_at(root: Path, cache: Path, repeat: int) -> dict[str, Any]:
    with get_context("spawn").Pool(1) as process:
        return process.apply(look, (root, cache, repeat))


def _asked(client: Any, path: str) -> dict[str, float]:
    started, used = time.perf_counter(), time.process_time()
    reply = client.get(path)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    assert reply.status_code == 200, reply.text
    size = len(gzip.compress(reply.content))
    return {"ms": round(seconds * 1e3, 1), "cpu_ms": round(cpu * 1e3, 1), "kilobytes": round(size / 1e3, 1)}


def asset_sizes() -> dict[str, float]:
    """Return the kilobytes of styles and modules as they are sent."""
    from osmosis_ai.ui.pages import assets

    sizes = {"css": 0, "js": 0}
    for name, asset in assets().items():
        kind = name.rpartition(".")[2]
        if kind in sizes:
            sizes[kind] += len(gzip.compress(asset.content))
    return {kind: round(size / 1e3, 1) for kind, size in sizes.items()}


_TRAJECTORY = {
    "schema_version": "ATIF-v1.7",
    "session_id": "row-0-run-0",
    "agent": {"name": "math", "version": "1"},
    "steps": [
        {"step_id": step, "source": "user" if step % 2 else "agent", "message": "What is 6 times 7? " * 20}
        for step in range(1, 201)
    ],
}
_NO_NUMBERS = json.dumps({"eval_run": {"duration_ms": 1000}, "summary": {"pass_threshold": 1.0}})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the viewer's pages.")
    parser.add_argument("--samples", type=int, default=100_000, help="of the large run (default: 100000)")
    parser.add_argument("--runs", type=int, default=10_000, help="in the list (default: 10000)")
    parser.add_argument("--repeat", type=int, default=5, help="the median of so many looks (default: 5)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        evals = Path(scratch) / ".osmosis" / "evals"
        write_large_run(evals / "large", options.samples)
        alone = _looked_at(Path(scratch), Path(scratch) / "cache of one run", 1)["peak_megabytes"]
        write_small_runs(evals, options.runs)
        figures = _looked_at(Path(scratch), Path(scratch) / "cache", options.repeat)
    figures["peak_megabytes_of_one_run"] = alone
    figures |= {"samples": options.samples, "runs": options.runs, "assets_kilobytes": asset_sizes()}
    print(f"{options.samples:,} samples, {options.runs:,} runs; peak {figures['peak_megabytes']} MiB")
    print(f"with the run of {options.samples:,} samples alone: peak {alone} MiB")
    print(f"{'':<30} {'ms':>8} {'CPU ms':>8} {'KB gzip':>8}")
    for stage, pages in (("first look", figures["first"]), ("", figures["pages"])):
        for name, page in pages.items():
            shown = f"{name}, {stage}" if stage else name
            print(f"{shown:<30} {page['ms']:>8.1f} {page['cpu_ms']:>8.1f} {page['kilobytes']:>8.1f}")
    print(
        "assets, KB gzip: "
        + ", ".join(f"{kind} {size}" for kind, size in figures["assets_kilobytes"].items())
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
