# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Signals and exit codes by which processes of a job end, and what is known of each."""

from __future__ import annotations

from typing import Dict

# Numbers of Linux's signals by which processes of a job end, and what is known of each.
SIGNALS: Dict[int, str] = {
    1: "SIGHUP: the terminal or the launcher went away",
    2: "SIGINT: interrupted by a user, or passed on by a launcher",
    3: "SIGQUIT: ended from outside, or by a request for its stacks",
    4: "SIGILL: an instruction that this CPU does not have: commonly a build for another CPU",
    6: "SIGABRT: the process ended itself (abort, a failed check, an exception in C++): its lines before show why",
    7: "SIGBUS (bus error): memory behind a mapping is not there: commonly /dev/shm is full or too small (containers:"
    " --shm-size, --ipc=host), less often a file that was cut off or faulty memory",
    8: "SIGFPE: a division by zero or the like in native code",
    9: "SIGKILL: killed from outside: commonly out of memory of the host (dmesg) or of the cgroup or pod, else the"
    " scheduler, the launcher or a user",
    10: "SIGUSR1: of the scheduler or of a program, no crash",
    11: "SIGSEGV: a crash in native code, which may follow from an earlier failure: look at the lines before it",
    13: "SIGPIPE: the other end of a pipe or connection was closed",
    15: "SIGTERM: ended from outside: commonly the launcher ends the others after the first failure, or the scheduler",
    24: "SIGXCPU: the limit of CPU time",
    31: "SIGSYS: a system call that the sandbox does not allow",
}
# Exit codes that are no signals.
CODES: Dict[int, str] = {
    126: "the program may not be executed",
    127: "the program, or a library of it, was not found",
}
# As shells, launchers and crash handlers name them.
NUMBERS = {
    "SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9,
    "SIGSEGV": 11, "SIGPIPE": 13, "SIGTERM": 15, "Segmentation fault": 11, "Bus error": 7, "Aborted": 6, "Killed": 9,
    "Illegal instruction": 4, "Floating point exception": 8,
}  # fmt: skip


def meaning(number: int) -> str:
    """What an exit code says: ``137`` and ``-9`` are signal 9; "" of a code that programs choose themselves."""
    if number in CODES:
        return CODES[number]
    signal = -number if number < 0 else number - 128
    if signal in SIGNALS:
        return "signal %d, %s" % (signal, SIGNALS[signal])
    return ""
