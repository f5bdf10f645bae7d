"""A model endpoint as a supervised service.

The model runs in its own process, so that it does not block the caller's event loop. It listens on a free loopback port
and requires a generated key.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import MODELS_DIR, served_models
from osmosis_ai.process_environment import chosen, python_environment
from osmosis_ai.processes.service import Service, ServiceSpec

API_KEY_ENV = "OSMOSIS_INFERENCE_API_KEY"
# The matrices are too small for threads. One name for each library that NumPy's products may use.
SINGLE_THREAD_ENV = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
# Some models of the hub need a login.
_HUB_LOGIN = ("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN")


class InferenceServer(Service):
    """Serves a model while an ``async with`` block lasts, under its own name or ``served_as``."""

    def __init__(
        self, model: str = "osmosis/tiny", *, adapter: Path | None = None, served_as: str | None = None
    ) -> None:
        self.model = served_as or model
        self.api_key = secrets.token_urlsafe(24)
        arguments = [f"--model={model}", f"--served-as={self.model}"]
        arguments += [f"--adapter={adapter.resolve()}"] if adapter else []
        super().__init__(
            ServiceSpec(
                name=f"the server of `{self.model}`",
                command=[sys.executable, "-m", "osmosis_ai.inference", *arguments],
                env={
                    **python_environment(os.environ),
                    **chosen(os.environ, _HUB_LOGIN),
                    **SINGLE_THREAD_ENV,
                    API_KEY_ENV: self.api_key,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONSAFEPATH": "1",
                },
                # `-m` puts the working directory on the module path (before Python 3.11 always), where a user's
                # `random.py` would replace Python's own.
                cwd=MODELS_DIR,
                announces='{"base_url"',
                code="INTERNAL",
                # torch takes seconds to import, and billions of weights are read or downloaded.
                start_timeout_s=60.0 if model in served_models() else 900.0,
            )
        )

    @property
    def base_url(self) -> str:
        if self.answer is None:
            raise OsmosisError(f"{self.spec.name} is not running.", code="INTERNAL")
        return str(self.answer["base_url"])
