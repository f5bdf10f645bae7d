"""What stands in place of ``python`` where processes are forked warm: see ``tests/warm_osmosis.py``.

It imports built-in modules alone, so that it costs milliseconds; the first two words name the server's socket and
the real interpreter, the others are what the interpreter would get.
"""

import _signal
import _socket
import marshal
import posix
import sys

# Ours, of all that could be run as a file: how a rollout's server begins, and what stands in these directories.
BOOTSTRAP, DIRECTORIES = "_server_bootstrap.py", ("benchmarks", "scripts")
# What these change is decided before the first import.
_OF_THE_START = (
    "PYTHONHOME",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "PYTHONDEVMODE",
)
_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)


def can_be_forked(words):
    """Whether a warm process can run these words: our modules, code, or a rollout's server."""
    if not words or any(name.encode() in posix.environ for name in _OF_THE_START):
        return False
    if words[0] == "-m":
        return len(words) > 1 and words[1].split(".")[0] in ("osmosis_ai", "tests")
    directory, _, name = words[0].rpartition("/")
    return words[0] == "-c" or name == BOOTSTRAP or directory.rpartition("/")[2] in DIRECTORIES


def descriptors():
    """The descriptors of this process: its standard streams and inherited ones."""
    try:
        listed = posix.listdir("/proc/self/fd")
    except OSError:
        return [0, 1, 2]
    found = []
    for number in sorted(map(int, listed)):
        try:
            posix.fstat(number)  # the directory that was listed is closed by now
        except OSError:
            continue
        found.append(number)
    return found


def pass_on(server, number):
    """Send the process a signal, unless it has just ended."""
    try:  # noqa: SIM105 - contextlib is no built-in module
        server.sendall(bytes([number]))
    except OSError:
        pass


def main(path, python, words):
    """Let the server fork a process for ``words`` with our environment and files; return its exit status."""
    given = descriptors()
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        server.connect(path)
    except OSError:  # the tests are over
        return 70
    umask = posix.umask(0o22)
    posix.umask(umask)
    wish = {
        "words": words,
        "cwd": posix.getcwd(),
        "env": dict(posix.environ),
        "given": given,
        "pid": posix.getpid(),
        "leads": posix.getpgrp() == posix.getpid(),
        "umask": umask,
    }
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in given)
    server.sendmsg([b"*"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    document = marshal.dumps(wish)
    server.sendall(len(document).to_bytes(4, "big") + document)
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda number, _: pass_on(server, number))
    # The other end of a pipe that was passed on is to be the process's alone.
    for number in given:
        if number > 2:
            posix.close(number)
    ended = b""
    while not ended.endswith(b"\n"):
        part = server.recv(64)
        if not part:
            return 70
        ended += part
    status = int(ended)
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        posix.kill(posix.getpid(), -status)
    return status


if __name__ == "__main__":
    path, python, *words = sys.argv[1:]
    if can_be_forked(words):
        posix._exit(main(path, python, words))
    posix.execv(python, [python, *words])
