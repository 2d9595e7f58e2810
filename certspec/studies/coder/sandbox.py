"""Runs a model's program in a process of its own: limited seconds, memory and files, no network, an
empty folder that is removed, killed with all its children when time is up.

The limits are the kernel's (``setrlimit``, and a network namespace where ``unshare`` may make one);
an audit hook, which Python code can't take off again, refuses sockets, processes, foreign code and
writing. That holds off careless code; against an attacker use a virtual machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache

__all__ = ["Limits", "run_program"]


@dataclass(frozen=True)
class Limits:
    """``seconds``: of processor time; ``clock``: seconds by the clock, many more of them, so that a
    busy machine fails no program; ``memory``: bytes of address space."""

    seconds: int = 10
    clock: float = 90.0
    memory: int = 2 << 30


# argv: token, seconds, memory; the program comes by stdin. What it prints goes nowhere: the token
# is written to the real output once the program has come to its end.
_GUARD = """
import os, resource, sys
token, seconds, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.argv[1:] = []
source = sys.stdin.buffer.read()
report = os.dup(1)
nothing = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(nothing, stream)
for limit, most in (
    (resource.RLIMIT_CPU, seconds),
    (resource.RLIMIT_AS, memory),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (most, most))
refused = (
    "socket.", "subprocess.", "ctypes.", "resource.", "shutil.", "ftplib.", "http.", "urllib.",
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill", "pty.",
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "signal.pthread_kill", "sys.addaudithook",
)
def hook(event, arguments):
    if event == "ctypes.dlopen" and arguments[0] is None:  # this process itself, as numpy asks
        return
    if event.startswith(refused):
        raise PermissionError(event)
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        raise PermissionError(event)
sys.addaudithook(hook)
write = os.write
try:
    exec(compile(source, "answer.py", "exec"), {"__name__": "answer"})
except BaseException as error:
    write(report, (type(error).__name__ + "\\n").encode()[:80])
    os._exit(1)
write(report, token.encode())
os._exit(0)
"""


def run_program(source: str, limits: Limits | None = None) -> str:
    """Run ``source`` to its end; "passed", "timed out", "killed", or the name of the exception that
    ended it ("AssertionError")."""
    limits = limits or Limits()
    token = secrets.token_hex(16)
    asked = [sys.executable, "-I", "-B", "-c", _GUARD, token]
    asked += [str(limits.seconds), str(limits.memory)]
    with tempfile.TemporaryDirectory(prefix="certspec-answer-") as folder:
        process = subprocess.Popen(
            [*_without_network(), *asked],
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            told, _ = process.communicate(source.encode(), timeout=limits.clock)
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            _kill_group(process)
    if process.returncode == 0 and told.decode(errors="replace") == token:
        return "passed"
    # a soft limit as high as the hard one ends in either of the two signals
    ends = (signal.SIGXCPU, signal.SIGKILL)
    if process.returncode in (*(-end for end in ends), *(128 + end for end in ends)):
        return "timed out"
    return told.decode(errors="replace").strip() or "killed"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@cache
def _without_network() -> tuple[str, ...]:
    """What to put before a command so that it has no network; nothing where the system has no way
    (the audit hook refuses sockets all the same)."""
    tool = shutil.which("unshare")
    if tool is None:
        return ()
    asked = (tool, "--user", "--map-root-user", "--net")
    tried = subprocess.run([*asked, "true"], capture_output=True, check=False)
    return asked if tried.returncode == 0 else ()
