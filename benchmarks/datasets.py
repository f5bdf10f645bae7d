"""CPU time and memory of `osmosis dataset validate`, against the plainest loop that parses the same file.

Each measurement is a process of its own; the best of the repetitions counts.
"""

from __future__ import annotations

import csv
import json
import random
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import harness as bench

KINDS = ["jsonl", "jsonl-metadata", "json", "csv", "parquet"]
COLUMNS = ("system_prompt", "user_prompt", "ground_truth")
READERS = {
    "jsonl": "json.loads loop", "json": "json.load", "csv": "csv.DictReader loop",
    "parquet": "pyarrow to_pylist",
}  # fmt: skip


def validate(path: Path) -> int:
    from osmosis_ai.datasets import validate_dataset

    found = validate_dataset(path)
    assert found.valid, found.errors
    return found.row_count


def parse(path: Path) -> int:
    """Parse a file without checks; return its rows."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return len(pyarrow.parquet.read_table(path, use_threads=False).to_pylist())
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".json":
            return len(json.load(file))
        if path.suffix == ".csv":
            return sum(1 for _ in csv.DictReader(file))
        return sum(1 for line in file if json.loads(line))


def measure(is_ours: bool, path: Path, small: Path) -> tuple[int, float, float, float]:
    """Read a file; return its rows, seconds, CPU seconds and peak memory."""
    read = validate if is_ours else parse
    read(small)  # imports do not count
    began, cpu = time.perf_counter(), time.process_time()
    rows = read(path)
    return rows, time.perf_counter() - began, time.process_time() - cpu, bench.peak_mib()


def make_rows(megabytes: int, with_metadata: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of about 320 bytes until their text fills ``megabytes``."""
    draw, written = random.Random(0), 0
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(500)]
    while written < megabytes << 20:
        prompt = " ".join(draw.choices(words, k=draw.randint(10, 60)))
        row: dict[str, Any] = dict(
            zip(COLUMNS, ("You are a helpful assistant.", prompt, str(draw.randint(0, 10**6))), strict=True)
        )
        if with_metadata:
            row["metadata"] = {"level": draw.randint(1, 5), "source": "made up", "tags": ["a", "b"]}
        written += len(json.dumps(row)) + 1
        yield row


def write_file(path: Path, kind: str, megabytes: int) -> None:
    rows = make_rows(megabytes, kind.endswith("metadata"))
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(rows)), path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        elif kind == "json":
            for number, row in enumerate(rows):
                file.write(("," if number else "[") + "\n" + json.dumps(row))
            file.write("\n]\n")
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def main() -> None:
    given = bench.options(__doc__, megabytes=160, repeat=3, format=KINDS)
    rows = []
    for kind in given.format:
        with bench.scratch() as directory:
            extension = kind.partition("-")[0]
            path, small = directory / f"rows.{extension}", directory / f"small.{extension}"
            write_file(path, kind, given.megabytes)
            write_file(small, kind, 1)
            found: dict[bool, list[tuple[int, float, float, float]]] = {False: [], True: []}
            for _ in range(given.repeat):
                for is_ours, runs in found.items():
                    with get_context("spawn").Pool(1) as process:
                        runs.append(process.apply(measure, (is_ours, path, small)))
            size = path.stat().st_size / 2**20
        plain_s = min(run[2] for run in found[False])
        for is_ours, runs in found.items():
            counts, seconds, cpu_s, peak = zip(*runs, strict=True)
            row = {
                "file": kind, "reader": "dataset validate" if is_ours else READERS[extension],
                "MiB": round(size, 1), "rows": counts[0], "seconds": round(min(seconds), 3),
                "CPU s": round(min(cpu_s), 3), "MiB/s": round(size / min(seconds), 1),
                "peak MiB": round(max(peak), 1), "speed": round(plain_s / min(cpu_s), 2),
            }  # fmt: skip
            rows.append(row)
    bench.report(given, rows)


if __name__ == "__main__":
    main()
