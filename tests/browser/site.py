"""What the browser looks at: one of everything, with names and texts that are as bad as they get."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from osmosis_ai.api.models.base import LogEntry
from osmosis_ai.evaluation.metrics import RunScore
from osmosis_ai.training.runs.run_directory import ValidationSamples
from osmosis_ai.viewer.serving import ViewerKeys, opening_address, viewer_app
from osmosis_ai.viewer.source import FailureCount, Histogram, RunDetail
from tests.viewer.builders import STEPS, a_document, learned, trajectory, two_runs
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.viewer.source_contract import sample_record

HOSTILE = "</script><script>alert(1)</script><img src=https://elsewhere.invalid onerror=alert(1)>{{ 7*7 }}\u202e\x1b]0;x\x07"
LONG = "wordwithoutanyblank" * 16

# Every page of the viewer, by what it is.
PAGES = {
    "runs": "/",
    "evaluations": "/evals",
    "empty list": "/evals?q=nothing-has-this-name",
    "trainings": "/training",
    "rubrics": "/rubrics",
    "evaluation": "/evals/new",
    "samples": "/evals/new/samples",
    "samples by row": "/evals/new/samples?group=row",
    "conversation": "/evals/new/samples/5.0",
    "conversation in Markdown": "/evals/new/samples/5.0?text=markdown",
    "two conversations": "/evals/new/samples/5.0?with=6.0",
    "log": "/evals/new/log",
    "comparison": "/compare?run=old&run=new",
    "training": "/training/keen-owl-2",
    "conversation of a validation": "/training/keen-owl-2/validation/5.0",
    "rubric": "/rubrics/answers",
    "nothing": "/evals/nothing-here",
}


def a_site() -> FakeSource:
    """Return a source with a run of each kind."""
    source = two_runs()
    headline = RunScore(pass_rate=0.4, low=0.3, high=0.5, scored=8, planned=12, failed=2)
    new = replace(
        source.entries[1], headline=headline, config=LONG, trend=[0.1, None, 0.3, 0.4], error=HOSTILE
    )
    training = a_run("keen-owl-2", "training", model=LONG)
    rubric = a_run("answers", "rubric")
    source.entries = [source.entries[0], new, training, rubric, a_run(LONG, dataset=HOSTILE)]
    source.details = {
        "new": RunDetail(
            new,
            facts=[("Seed", "7"), (LONG, HOSTILE)],
            config_written=f"[evaluation]\nname = '{LONG}'\n{HOSTILE}",
            config_effective={"evaluation": {"n": 2, "grader": HOSTILE}},
            secret_names=["OPENAI_API_KEY"],
            failures=[FailureCount("agent", "crash", 2, (6, 0), HOSTILE + LONG)],
            rewards=Histogram([0.0, 0.5, 1.0], [4, 4]),
            previous=source.entries[0],
            problems=["The journal ends in a torn line."],
            commands=[f"osmosis eval run configs/eval/{LONG}.toml --retry-failed"],
        ),
        "answers": RunDetail(rubric, summary_numbers=a_document(records=12)),
    }
    failed = a_sample(6, passed=None, status="failed", reward=None, boundary="agent", error=HOSTILE + LONG)
    listed = [a_sample(row, input=LONG, output=HOSTILE, tokens=12) for row in (5, 7, 8)]
    source.listed["new"] = [listed[0], failed, *listed[1:]]
    said = [
        {
            "source": "user",
            "message": f"# One\n\n{HOSTILE}\n\n![x](https://elsewhere.invalid/p.png)\n\n{LONG}",
        },
        {"source": "agent", "message": json.dumps({"a": [LONG, HOSTILE]}), "reasoning_content": HOSTILE},
    ]
    source.conversations = {
        ("new", 5, 0): trajectory(*STEPS, *said, label=HOSTILE),
        ("new", 6, 0): trajectory(*said),
        ("keen-owl-2", 5, 0): trajectory(*STEPS, *said, label=HOSTILE),
    }
    validated = [sample_record(row, 0, row / 8, input=LONG, output=HOSTILE) for row in (5, 6)]
    source.validations = {"keen-owl-2": ValidationSamples.of(validated, step=12, pass_threshold=0.75)}
    source.curves_of = {"keen-owl-2": learned()}
    source.lines = [LogEntry(level="warning", message=f"line {n} {HOSTILE} {LONG}") for n in range(50)]
    return source


@contextmanager
def served(source: FakeSource) -> Iterator[str]:
    """Serve the viewer on a port of this machine, and yield an address that opens it once."""
    import uvicorn

    keys = ViewerKeys()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        app = viewer_app(source, keys, hosts=frozenset({host}))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        serving.start()
        while not server.started and serving.is_alive():
            time.sleep(0.01)
        try:
            yield opening_address(f"http://{host}", keys.make("/"))
        finally:
            server.should_exit = True
            serving.join(300)
