# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a step of Slurm and remove all of it, on the nodes and in the queue, however this process ends.

A step outlives an srun that is killed, and its job keeps the nodes. So srun runs below a shell in its own session,
which no signal to our group reaches: once our end of its input is closed, which the kernel does for a killed process,
it ends srun, and cancels the job by its name.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable

from .slurm_engine import LINE, SlurmError

PROGRAMS = ("srun", "sinfo", "scontrol", "scancel")
# Seconds for Slurm to respond, and for the rest of a step to end.
PATIENCE, END = 60, 60
# Variables of the user that srun gets: the choice of a Slurm and of an account; others would reach the nodes.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_ACCOUNT", "SLURM_QOS")
PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# $1: scancel. $2: the job's name. $3: the file with the script. Then srun and its arguments.
GUARD = """
cancel=$1 name=$2 script=$3
shift 3
# scancel alone sends TERM first, and a child that outlives its parent is lost to proctrack/linuxproc.
remove() {
  timeout 10 "$cancel" --quiet --signal=KILL --name="$name"
  timeout 10 "$cancel" --quiet --name="$name"
}
exec 4<&0
trap : HUP INT TERM
"$@" <"$script" 4<&- &
step=$!
{
  read -r _
  kill -s TERM "$step"
  for _ in 1 2 3 4 5; do kill -0 "$step" && sleep 1; done
  remove
  sleep 15
  kill -s KILL "$step"
} <&4 >/dev/null 2>&1 &
watch=$!
exec 4<&-
wait "$step" 2>/dev/null
code=$?
if kill -0 "$step" 2>/dev/null; then kill -s TERM "$step"; wait "$step" 2>/dev/null; fi
remove >/dev/null 2>&1
kill -s KILL "$watch" 2>/dev/null
exit "$code"
"""


def programs(names: Sequence[str] = PROGRAMS) -> dict[str, str]:
    """Return name -> path. Raises SlurmError where one is missing."""
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), PLACES))
    found = {name: shutil.which(name, path=places) or "" for name in names}
    lacking = [name for name, path in found.items() if not path]
    if lacking:
        way = "install Slurm's client programs, run busbar where they are, or leave out --engine slurm"
        raise SlurmError(f"this machine has no {', '.join(lacking)}: {way}")
    return found


def environment() -> dict[str, str]:
    """Return the environment of Slurm's programs, which the tasks on the nodes inherit."""
    return {"PATH": PLACES, "LC_ALL": "C.UTF-8", **{name: os.environ[name] for name in KEPT if name in os.environ}}


def run_program(path: str, argv: Sequence[str]) -> str:
    """Return the output of one of Slurm's programs. Raises SlurmError."""
    try:
        done = subprocess.run(
            [path, *argv[1:]],
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} did not respond within {PATIENCE} s: is slurmctld up (scontrol ping)?") from None
    except OSError as error:
        raise SlurmError(f"{path}: {error.strerror}") from error
    if done.returncode:
        said = printable(" ".join(done.stderr.split())[:300])
        raise SlurmError(f"{' '.join(argv[:2])} exited with {done.returncode}: {said}")
    return done.stdout


def run(
    paths: dict[str, str],
    argv: Sequence[str],
    job: str,
    script: Path,
    seconds: float,
    heard: Callable[[bytes], None],
    said: Callable[[bytes], None],
    enough: Callable[[], bool],
) -> bool:
    """Run srun until it ends, for so many seconds at most. True: they were over, and it was ended.

    heard: gets pieces of its output. said: gets lines of its standard error. enough: all results are there.
    Raises SlurmError where it cannot be started.
    """
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", paths["scancel"], job, str(script), paths[argv[0]], *argv[1:]],
            # What ends all that `busbar` has started gives a slow srun no time.
            env={**environment(), process_group.ENDS_ITSELF: "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmError(f"{argv[0]} could not be started: {error.strerror}") from error
    try:
        return _read(guard, time.monotonic() + seconds, heard, said, enough)
    finally:
        _end(guard)


def _read(
    guard: subprocess.Popen[bytes],
    end: float,
    heard: Callable[[bytes], None],
    said: Callable[[bytes], None],
    enough: Callable[[], bool],
) -> bool:
    rest = b""
    late = False
    with selectors.DefaultSelector() as selector:
        selector.register(guard.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        selector.register(guard.stderr, selectors.EVENT_READ)  # type: ignore[arg-type]
        while selector.get_map():
            left = end - time.monotonic()
            if guard.stdin and not guard.stdin.closed and (left <= 0 or enough()):
                late = left <= 0
                guard.stdin.close()
                end = time.monotonic() + END
            elif left <= 0:
                return late
            for key, _events in selector.select(min(max(left, 0), 1)):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is guard.stdout:
                    heard(data)
                else:
                    *lines, rest = (rest + data).split(b"\n")
                    rest = rest[:LINE]
                    for line in lines:
                        said(line)
    return late


def _end(guard: subprocess.Popen[bytes]) -> None:
    """End the guard in any case. Its session holds srun as well."""
    if guard.stdin and not guard.stdin.closed:
        with contextlib.suppress(OSError):
            guard.stdin.close()
    try:
        guard.wait(END)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
    for stream in (guard.stdout, guard.stderr):
        if stream:
            stream.close()
