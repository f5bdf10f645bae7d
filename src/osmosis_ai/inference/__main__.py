"""`python -m osmosis_ai.inference`: the process of an `InferenceServer`.

When ready, it prints one JSON line: ``{"base_url": ..., "model": ...}``. The bearer key comes from the environment,
because every user of the machine can read command lines.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from osmosis_ai import event_loop
from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.process import API_KEY_ENV
from osmosis_ai.processes.child_process import watch_parent


def main() -> int:
    watch_parent()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(
        prog="python -m osmosis_ai.inference",
        description="Serve a model behind an OpenAI-compatible endpoint on this machine.",
        epilog=f"{API_KEY_ENV} is the bearer key that clients must send.",
    )
    parser.add_argument(
        "--model", required=True, help="a built-in model, a folder, or a model name on the Hugging Face Hub"
    )
    parser.add_argument("--adapter", type=Path, help="a folder with a LoRA adapter to merge into the model")
    parser.add_argument("--served-as", metavar="NAME", required=True, help="the model's name in requests")
    options = parser.parse_args()
    api_key = os.environ.pop(API_KEY_ENV, "")
    if not api_key:
        parser.error(f"{API_KEY_ENV} is not set")
    try:
        from osmosis_ai.inference.server import serve

        event_loop.run(serve(options.model, options.adapter, options.served_as, api_key))
    except (OsmosisError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:  # before the event loop handled the signal
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
