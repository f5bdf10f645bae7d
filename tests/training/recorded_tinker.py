"""A server that answers as a SkyRL 0.4 server did, whose requests and replies are in `skyrl.json`."""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from google.protobuf.json_format import MessageToDict
from tinker.proto import tinker_public_pb2 as pb

from tests.training.standin_tinker import array

RECORDING = Path(__file__).with_name("skyrl.json")


class RecordedTinker:
    """Answers the calls of each path in the recorded order; ``differences`` lists requests that differ from theirs."""

    def __init__(self) -> None:
        self.exchanges: dict[str, list[dict[str, Any]]] = json.loads(RECORDING.read_text())
        self.differences: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        call, sent = request.path, decode(request.content_type, await request.read())
        if call.endswith("/session_heartbeat"):  # at any time
            return web.json_response({"type": "session_heartbeat"})
        if call.endswith("/retrieve_future"):
            call += f" {sent['request_id']}"
        if not self.exchanges.get(call):
            self.differences.append(f"{call}: not recorded")
            return web.Response(status=404)
        recorded = self.exchanges[call].pop(0)
        if not is_same(sent, recorded["sent"]):
            self.differences.append(f"{call}: {sent} instead of {recorded['sent']}")
        headers = {"Content-Type": recorded["type"]}
        if "location" in recorded:
            headers["Location"] = f"http://{request.host}{recorded['location']}"
        reply = recorded["reply"]
        body = base64.b64decode(reply) if isinstance(reply, str) else json.dumps(reply).encode()
        return web.Response(status=recorded["status"], body=body, headers=headers)


def decode(content_type: str, body: bytes) -> Any:
    """Return a request's body without the client's version and the random ends of names."""
    if content_type != "application/x-protobuf":
        text = re.sub(r'(recorded-\w+-\d+)-\w{6}"', r'\1"', body.decode())
        return json.loads(re.sub(r'("sdk_version":)"[^"]*"', r'\1""', text) or "null")
    asked = pb.ForwardBackwardRequest.FromString(body)
    found = MessageToDict(asked)
    for datum, shown in zip(asked.data, found["data"], strict=True):
        tokens = datum.model_input[0].encoded_text.tokens
        shown["modelInput"][0]["encodedText"]["tokens"] = np.frombuffer(tokens, dtype=np.int32).tolist()
        for name, tensor in datum.loss_fn_inputs.items():
            shown["lossFnInputs"][name]["dense"] = array(tensor).tolist()
    return found


def is_same(sent: Any, recorded: Any) -> bool:
    """Compare fields, types and values; numbers may differ by rounding."""
    if type(sent) is not type(recorded):
        return False
    if isinstance(sent, float):
        return math.isclose(sent, recorded, rel_tol=1e-4)
    if isinstance(sent, dict):
        return sent.keys() == recorded.keys() and all(is_same(sent[key], recorded[key]) for key in sent)
    if isinstance(sent, list):
        return len(sent) == len(recorded) and all(map(is_same, sent, recorded))
    return bool(sent == recorded)
