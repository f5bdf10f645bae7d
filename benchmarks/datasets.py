"""How fast `osmosis dataset validate` reads, against the plainest loop that parses the same file.

Every measurement is a process of its own; the best of the repetitions counts, since other work on
the machine can only slow a run down. Ratios are of processor time: all readers use one thread.
Peak memory is read from /proc, so this runs on Linux.

    python benchmarks/datasets.py [--megabytes 160] [--repeat 3] [--format jsonl ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
KINDS = ("jsonl", "jsonl-metadata", "json", "csv", "parquet")

OURS = """
from osmosis_ai.datasets import validate_dataset
def read(path):
    report = validate_dataset(path)
    assert report.valid, report.errors
    return report.row_count
"""
BASELINES = {
    "jsonl": """
import json
def read(path):
    rows = 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            json.loads(line)
            rows += 1
    return rows
""",
    "json": """
import json
def read(path):
    with open(path, encoding="utf-8") as file:
        return len(json.load(file))
""",
    "csv": """
import csv
def read(path):
    with open(path, encoding="utf-8", newline="") as lines:
        return sum(1 for _ in csv.DictReader(lines))
""",
    "parquet": """
import pyarrow.parquet
def read(path):
    return len(pyarrow.parquet.read_table(path, use_threads=False).to_pylist())
""",
}
BASELINE_NAMES = {
    "jsonl": "json.loads loop",
    "json": "json.load",
    "csv": "csv.DictReader loop",
    "parquet": "read_table().to_pylist()",
}
MEASURE = """
import json, re, sys, time
from pathlib import Path
read(Path({small!r}))  # imports do not count
started, used = time.perf_counter(), time.process_time()
rows = read(Path(sys.argv[1]))
print(json.dumps({{
    "rows": rows,
    "seconds": time.perf_counter() - started,
    "cpu_seconds": time.process_time() - used,
    # Not ru_maxrss: a child starts with the peak of the process that forked it.
    "peak_megabytes": int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024,
}}))
"""


def make_rows(megabytes: int, *, metadata: bool) -> Iterator[Row]:
    """Yield rows of about 320 bytes until their text fills ``megabytes``."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(500)]
    written = 0
    while written < megabytes << 20:
        row: Row = {
            "system_prompt": "You are a helpful assistant.",
            "user_prompt": " ".join(draw.choices(words, k=draw.randint(10, 60))),
            "ground_truth": str(draw.randint(0, 10**6)),
        }
        if metadata:
            row["metadata"] = {"level": draw.randint(1, 5), "source": "made up", "tags": ["a", "b"]}
        written += len(json.dumps(row)) + 1
        yield row


def write_file(path: Path, kind: str, megabytes: int) -> None:
    """Write the rows of ``kind`` as a stream."""
    rows = make_rows(megabytes, metadata=kind.endswith("metadata"))
    if kind == "parquet":
        _write_parquet(path, rows)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if kind == "csv":
            writer = csv.writer(file)
            writer.writerow(["system_prompt", "user_prompt", "ground_truth"])
            writer.writerows(row.values() for row in rows)
        elif kind == "json":
            for number, row in enumerate(rows):
                file.write(("," if number else "[") + "\n" + json.dumps(row))
            file.write("\n]\n")
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _write_parquet(path: Path, rows: Iterator[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in ("system_prompt", "user_prompt", "ground_truth")])
    with pq.ParquetWriter(path, schema) as writer:
        batch: list[Row] = []
        for row in rows:
            batch.append(row)
            if len(batch) == 100_000:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch = []
        if batch:
            writer.write_table(pa.Table.from_pylist(batch, schema))


def measure(reader: str, path: Path, small: Path) -> dict[str, float]:
    """Run ``reader`` on ``path`` in a fresh process."""
    code = reader + MEASURE.format(small=str(small))
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def compare(kind: str, megabytes: int, repeat: int, directory: Path) -> dict[str, Any]:
    """Return the figures of one kind of file."""
    extension = kind.partition("-")[0]
    path, small = directory / f"rows.{extension}", directory / f"small.{extension}"
    write_file(path, kind, megabytes)
    write_file(small, kind, 1)
    found: dict[str, list[dict[str, float]]] = {"ours": [], "baseline": []}
    for _ in range(repeat):
        found["baseline"].append(measure(BASELINES[extension], path, small))
        found["ours"].append(measure(OURS, path, small))
    size = path.stat().st_size / 2**20
    path.unlink()
    best = {name: _best(runs, size) for name, runs in found.items()}
    ratio = best["baseline"]["cpu_seconds"] / best["ours"]["cpu_seconds"]
    return {
        "kind": kind,
        "megabytes": round(size, 1),
        "rows": int(found["ours"][0]["rows"]),
        "baseline_name": BASELINE_NAMES[extension],
        **best,
        "times_as_fast": round(ratio, 2),
    }


def _best(runs: list[dict[str, float]], size: float) -> dict[str, float]:
    seconds = min(run["seconds"] for run in runs)
    return {
        "seconds": round(seconds, 3),
        "cpu_seconds": round(min(run["cpu_seconds"] for run in runs), 3),
        "megabytes_per_second": round(size / seconds, 1),
        "peak_megabytes": round(max(run["peak_megabytes"] for run in runs), 1),
    }


def print_table(results: list[dict[str, Any]]) -> None:
    """Print one line per reader."""
    print(
        f"{'file':<15} {'MiB':>7} {'reader':<26} {'s':>7} {'CPU s':>7} {'MiB/s':>7} {'peak MiB':>9} {'ratio':>6}"
    )
    for result in results:
        for name, label in (("baseline", result["baseline_name"]), ("ours", "osmosis dataset validate")):
            run = result[name]
            ratio = f"{result['times_as_fast']:.2f}" if name == "ours" else "1.00"
            print(
                f"{result['kind']:<15} {result['megabytes']:>7.1f} {label:<26} {run['seconds']:>7.2f} {run['cpu_seconds']:>7.2f} "
                f"{run['megabytes_per_second']:>7.1f} {run['peak_megabytes']:>9.1f} {ratio:>6}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure dataset validation against plain parsing loops.")
    parser.add_argument("--megabytes", type=int, default=160, help="size of each file (default: 160)")
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many runs counts (default: 3)")
    parser.add_argument("--format", nargs="+", choices=KINDS, default=list(KINDS), help="default: all")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        results = [
            compare(kind, options.megabytes, options.repeat, Path(directory)) for kind in options.format
        ]
    print_table(results)
    text = json.dumps({"benchmark": "datasets", "results": results})
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
