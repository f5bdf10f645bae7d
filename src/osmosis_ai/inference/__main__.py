"""`python -m osmosis_ai.inference`: serve a model in the foreground.

When ready, it prints one JSON line: ``{"base_url": ..., "model": ...}``. The bearer key comes from the environment,
because every user of the machine can read command lines.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import sys
from pathlib import Path
from typing import get_args

from osmosis_ai import event_loop
from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import FORMAT_NAMES, EngineName, served_models
from osmosis_ai.inference.process import API_KEY_ENV, SINGLE_THREAD_ENV
from osmosis_ai.processes import watch_parent


def main() -> int:
    watch_parent()
    # The matrices are too small for threads. NumPy reads the variables when the server module imports it.
    for name, value in SINGLE_THREAD_ENV.items():
        os.environ.setdefault(name, value)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    options = _options()
    try:
        from osmosis_ai.inference.server import serve

        event_loop.run(serve(options, os.environ.pop(API_KEY_ENV, None) or None))
    except (OsmosisError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:  # before the event loop handled the signal
        return 130
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m osmosis_ai.inference",
        description="Serve a model behind an OpenAI-compatible endpoint.",
        epilog=f"The bearer key that clients must send is read from {API_KEY_ENV}.",
    )
    parser.add_argument("--model", default=served_models()[0], help="model to serve (default: %(default)s)")
    parser.add_argument(
        "--engine",
        choices=get_args(EngineName),
        default="numpy",
        help="numpy for a built-in model, torch for a folder or a name on the Hugging Face hub (default: %(default)s)",
    )
    parser.add_argument("--adapter", type=Path, help="a folder with a LoRA adapter to merge into the model")
    parser.add_argument("--served-as", metavar="NAME", help="its name in requests (default: the model's)")
    parser.add_argument(
        "--tool-call-format",
        choices=FORMAT_NAMES,
        help="how the model writes tool calls (default: as the adapter was trained, or as the chat template shows)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument(
        "--max-batch", type=int, default=32, help="sequences generated at once (default: %(default)s)"
    )
    parser.add_argument(
        "--max-waiting", type=int, default=1024, help="sequences that may wait (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.max_batch < 1 or options.max_waiting < 1:
        parser.error("--max-batch and --max-waiting are at least 1")
    try:
        loopback = ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        loopback = options.host == "localhost"
    if not loopback and not os.environ.get(API_KEY_ENV):
        parser.error(f"other machines can reach {options.host}: set {API_KEY_ENV} to the key they must send")
    return options


if __name__ == "__main__":
    sys.exit(main())
