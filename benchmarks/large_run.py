"""What a large run leaves on a platform: how many files, and how long its list of files takes beside a page about it.

A run of one model call a sample, and without artifacts, is made by the platform's own worker. Files and directories of the
platform's data are counted while it goes on and when it has ended and its shards are merged; those that only wait
until nobody's URL leads to them any more are counted apart. Then its manifest and its detail are asked for in turns; the
first manifest, which is written when it is asked for, is shown beside the others. The aims: a million samples at rest
are 2,000 files at most, and a manifest of 10,000 samples takes 5 times a detail's time at most.

    python benchmarks/large_run.py [--samples 10000] [--in-flight 32] [--turns 30]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from engine import stand_in_model
from parts.clients import Job, Latencies, dataset_bytes, get_run, has_ended, percentile, request, upload
from parts.platforms import Platform, make_repository, platform
from sqlalchemy import select

from osmosis_ai.api import routes
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRunShard
from osmosis_ai.platform.runs.desk.run_shards import MERGED_FOLDER, SHARDS_FOLDER
from osmosis_ai.platform.runs.desk.shard_policy import LARGE_BYTES

MILLION = 1_000_000
AIMS = {"files_of_a_million": 2_000, "manifest_ratio": 5.0}
LOOK_EVERY_S = 2.0
REST_LIMIT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=32, help="rollouts at once")
    parser.add_argument("--turns", type=int, default=30, help="how often manifest and detail are asked for")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = asyncio.run(measure(Path(directory), options))
    files, asked = figures["files"], figures["ms"]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {options.samples:,} samples")
    print(
        f"files and directories that the run added: {files['most']} at most while it went on, {files['at_rest']} at rest and "
        f"{files['replaced']} that were merged; {figures['shards']['count']} shards of {figures['shards']['bytes']:,} bytes\n"
        f"  so a million samples are {figures['files_of_a_million']} (aim: {AIMS['files_of_a_million']:,} at most)"
    )
    print(
        f"manifest {asked['manifest']} ms (the first {asked['first manifest']} ms), detail {asked['detail']} ms, medians: "
        f"{figures['manifest_ratio']}x (aim: {AIMS['manifest_ratio']:g}x at most)"
    )
    print(json.dumps(figures))


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Make the run, count what is there, and ask for what it left."""
    home, repository = directory / "home", make_repository(directory / "repository")
    with stand_in_model(0.0) as model_url, platform(home, repository, 1, runs=1, samples=0) as running:
        job = Job(model_url, options.in_flight)
        async with aiohttp.ClientSession() as session:
            content = dataset_bytes(options.samples)
            await upload(Latencies(), session, running.url, running.headers(), "bench", content)
            before = entries(home)
            name = await job.submit(session, running, options.samples)
            most = before
            while not has_ended(detail := await get_run(session, running, name)):
                most = max(most, entries(home))
                await asyncio.sleep(LOOK_EVERY_S)
            if detail["results"]["total_runs"] != options.samples:
                raise SystemExit(f"not every sample was made: {detail['results']}")
            shards, replaced = await at_rest(home)
            left = {"most": most - before, "at_rest": entries(home) - before - replaced, "replaced": replaced}
            times = await ask(session, running, name, options)
    large = shards["bytes"] / options.samples * MILLION / LARGE_BYTES
    return {
        "samples": options.samples,
        "files": left,
        "shards": shards,
        # What is no shard does not grow with the samples, and of the shards all but one are large.
        "files_of_a_million": math.ceil(left["at_rest"] - shards["count"] + large + 1),
        "ms": times,
        "manifest_ratio": round(times["manifest"] / times["detail"], 2),
    }


def entries(home: Path) -> int:
    """Count the files and directories below a data directory."""
    return sum(len(directories) + len(files) for _, directories, files in os.walk(home))


async def at_rest(home: Path) -> tuple[dict[str, int], int]:
    """Wait until the run's shards are merged; return how many and how large they are, and how many were replaced."""
    db = Database(PlatformConfig(home=home).database_url)
    deadline = time.monotonic() + REST_LIMIT_S
    try:
        while True:
            with db.session() as session:
                shards = session.scalars(select(DbRunShard)).all()
            sizes = [shard.size for shard in shards if shard.state == "stored"]
            under_way = [shard.key for shard in shards if shard.state in ("writing", "merged")]
            if len([size for size in sizes if size < LARGE_BYTES]) <= 1 and not under_way:
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"the shards were not merged: {sizes} {under_way}")
            await asyncio.sleep(1.0)
    finally:
        db.dispose()
    replaced = {shard.key for shard in shards if shard.state == "replaced"}
    on_disk = [path for folder in (SHARDS_FOLDER, MERGED_FOLDER) for path in home.rglob(f"{folder}/*")]
    kept = [path for path in on_disk if not any(path.as_posix().endswith(key) for key in replaced)]
    return {
        "count": len(kept),
        "bytes": sum(path.stat().st_size for path in kept),
    }, len(on_disk) - len(kept)


async def ask(
    session: aiohttp.ClientSession, running: Platform, name: str, options: argparse.Namespace
) -> dict[str, float]:
    """Return the medians of manifest and detail, asked for in turns, and what the first manifest took."""
    seen = Latencies()
    paths = {
        "manifest": routes.run_manifest(routes.EVAL_RUNS, name, "samples"),
        "detail": routes.run(routes.EVAL_RUNS, name),
    }
    for turn in range(options.turns + 1):
        for kind, path in paths.items():
            label = kind if turn else f"first {kind}"
            told = await request(session, seen, label, running.url + path, headers=running.headers())
            if kind == "manifest" and len(told["files"]) < options.samples:
                raise SystemExit(f"the manifest has {len(told['files'])} files of {options.samples} samples")
    return {kind: percentile(values, 50) for kind, values in seen.by_kind.items()}


if __name__ == "__main__":
    main()
