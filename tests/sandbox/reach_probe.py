"""What a malicious rollout tries, at every level alike; run by its path, with nothing but Python's own modules.

    python reach_probe.py ASKED

``ASKED`` is a JSON object that says where things are. Printed is a line of JSON, by what was tried whether it went; then
it waits to be ended, and so does a process that it has sent into a session of its own.
"""

import json
import os
import signal
import socket
import sys


def reads(path):
    with open(path, "rb") as file:
        return bool(file.read(1))


def opens(pid, name):
    """What is shown of a process, where it shows anything."""
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return name == "mem" or b"canary" in file.read()


def writes(path):
    with open(path, "ab") as file:
        return file.write(b"x") == 1


def answers(family, address):
    with socket.socket(family) as probe:
        probe.settimeout(30)
        probe.connect(tuple(address) if isinstance(address, list) else address)
        return probe.recv(1) == b"m"


def forks(count):
    children = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
        return True
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def takes(count):
    return len(bytearray(count)) == count


def tried(attempt):
    try:
        return bool(attempt())
    except (OSError, MemoryError):
        return False


def stay(held):
    """Send a process away that ends only when it is made to; return its number."""
    gone, going = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.fstat(held)
        os.write(going, b".")
        while True:
            signal.pause()
    os.read(gone, 1)
    return child


def main(asked):
    found = {
        "own files": tried(lambda: reads(asked["source"]) and writes(asked["artifact"])),
        "own secret": os.environ.get("OWN_SECRET") == "mine",
        "own model": tried(lambda: answers(socket.AF_INET, asked["model"])),
        "data directory": any(tried(lambda place=place: reads(place)) for place in asked["data"]),
        "home": any(tried(lambda place=place: reads(place)) for place in asked["home"]),
        "parents": any(tried(lambda name=name: opens(asked["keeper"], name)) for name in ("environ", "mem")),
        "neighbours": tried(lambda: opens(asked["neighbour"], "environ")),
        "installation": tried(lambda: writes(asked["installed"])),
        "system": any(
            os.access(place, os.W_OK) for place in ("/usr", "/etc", "/proc/sys/kernel/core_pattern")
        ),
        "processes": tried(lambda: forks(asked["processes"])),
        "memory": tried(lambda: takes(asked["bytes"])),
        "loopback": tried(lambda: answers(socket.AF_INET, asked["loopback"])),
        "abstract": tried(lambda: answers(socket.AF_UNIX, "\0" + asked["abstract"])),
        "metadata": tried(lambda: answers(socket.AF_INET, asked["metadata"])),
    }
    found["away"] = stay(asked["alive"])
    print(json.dumps(found), flush=True)
    signal.pause()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
