"""Programs that ask the model once, or misbehave as their prompt says; of the standard library alone."""

from __future__ import annotations

AGENT = '''
import json, os, subprocess, sys, time, urllib.request

said = sys.stdin.read()
with open(os.environ["OSMOSIS_PROMPT_FILE"]) as prompt:
    messages = json.load(prompt)["messages"]


def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def leave(seconds):
    """A process of another session, without a parent, a group or an environment of ours."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", seconds], {})
        os._exit(0)
    os.wait()


if said == "never asks":
    sys.exit(0)
if said == "exits 1":
    print("my key is", os.environ["OPENAI_API_KEY"], file=sys.stderr)
    sys.exit("no luck")
if said == "floods":
    while True:
        os.write(2, b"x" * 65536)
reply = ask(messages)
if said.startswith("hangs "):
    leave(said.split()[1])
    subprocess.Popen(["sleep", said.split()[1]])
    time.sleep(3600)
if said.startswith("leaves "):
    leave(said.split()[1])
    subprocess.Popen(["sleep", said.split()[1]], start_new_session=True)
if said == "uses a tool":
    messages = [*messages, reply, {"role": "tool", "tool_call_id": "c1", "content": "56"}]
    reply = ask(messages)
if said != "writes nothing":
    print(reply["content"])
'''
