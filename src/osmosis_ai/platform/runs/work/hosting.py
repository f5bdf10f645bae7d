"""A machine that takes runs, from its settings to its last word: what `osmosis platform worker` does."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import replace

from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.runs.execute.worker_process import WorkerStarter
from osmosis_ai.platform.runs.work.host_terms import HostTerms
from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.runs.work.taken_runs import TakenRuns
from osmosis_ai.platform.runs.work.worked_runs import WorkedRun
from osmosis_ai.platform.runs.work.worker_host import WorkerHost
from osmosis_ai.processes import disable_inspection
from osmosis_ai.processes.addresses import on_stop_signals
from osmosis_ai.sandbox import check_sandbox, choose_isolation


def host_runs(
    address: str, credential: str, terms: HostTerms, *, say: Callable[[str], None]
) -> list[WorkedRun]:
    """Execute a platform's runs on this machine, in its own ``OSMOSIS_HOME``, until asked to stop."""
    disable_inspection(os.environ)
    config = from_environment()
    link = HttpLink(address, credential)
    start = WorkerStarter(config, address, cpus=terms.cpus_of_worker)
    config.prepare_home()
    sandbox = check_sandbox(config.home)
    if config.isolation == "required" or config.network == "none":
        choose_isolation("required", sandbox, config.network or "host")
    machine = socket.gethostname()[:128] or None
    terms = replace(terms, address=address, machine=machine, sandbox=sandbox, isolation=config.isolation)
    taken = TakenRuns(config.runs_dir)
    host = WorkerHost(
        link, lambda run_id, claim_id: start(run_id, credential, claim_id), terms, taken, say=say
    )
    with contextlib.closing(link), on_stop_signals(host.ask_to_end):
        for sentence in terms.doubts():
            say(sentence)
        return host.run()
