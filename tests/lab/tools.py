# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs the Python tools of simulated nodes in the test's process, or in forks of it.

Starting an interpreter and importing json, re and dataclasses is nine tenths of what such a tool costs, and a test of a
fault runs a hundred of them. What a tool is given and prints is the same; tests/site and tests/containers start them.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any, BinaryIO

PYTHON = b"#!/usr/bin/env -S python3 -IS\n"
# A shell's, which runs the Python tool of the same name, or gives again what that has said.
ETHTOOL = "usr/share/busbar-lab/bin/ethtool"
# They start programs, which write to the process's own streams.
STARTING = ("udevadm", "ib_write_bw", "ib_write_lat")
# Forks run what a child's module starts, which is killed before one of its own writes, and what threads start, as a
# process has one stdout.
PARENT = os.getpid()
# No process has it: what is to end this one's children finds none.
NOBODY = 1 << 30


class Done:
    """As much of subprocess.Popen as Host.run uses, of a tool that has run in this process."""

    pid = NOBODY

    def __init__(self, argv: Sequence[str], code: CodeType, environment: Mapping[str, str]) -> None:
        outputs, errors = io.StringIO(), io.StringIO()
        with (
            _as_program(argv, environment),
            open(os.devnull) as sys.stdin,
            contextlib.redirect_stdout(outputs),
            contextlib.redirect_stderr(errors),
        ):
            try:
                self.returncode = _run(argv, code)
            except Exception:  # noqa: BLE001 as of an interpreter that ends by one
                traceback.print_exc()
                self.returncode = 1
        self.stdout, self.stderr = _file(outputs), _file(errors)

    def wait(self, timeout: float) -> int:  # noqa: ARG002
        return self.returncode


def _file(text: io.StringIO) -> BinaryIO:
    stream = os.fdopen(os.memfd_create("tool"), "w+b")
    stream.write(text.getvalue().encode())
    stream.seek(0)
    return stream


@contextlib.contextmanager
def _as_program(argv: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Give the tool its arguments and its environment, and take back what it does to the interpreter."""
    path, before, stdin, words, bytecode = [*sys.path], dict(os.environ), sys.stdin, sys.argv, sys.dont_write_bytecode
    sys.argv = [*argv]
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.path[:], sys.stdin, sys.argv, sys.dont_write_bytecode = path, stdin, words, bytecode


class Fork:
    """The same of one that runs in a fork."""

    def __init__(self, argv: Sequence[str], code: CodeType, environment: Mapping[str, str]) -> None:
        outputs, errors = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                streams = os.open(os.devnull, os.O_RDONLY), outputs[1], errors[1]
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                os.closerange(3, 1024)
                gc.disable()
                sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
                with _as_program(argv, environment):
                    code_of_exit = _run(argv, code)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code_of_exit)
            finally:
                # As of an interpreter that ends by an exception.
                traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(1)
        os.close(outputs[1])
        os.close(errors[1])
        self.stdout: BinaryIO = os.fdopen(outputs[0], "rb")
        self.stderr: BinaryIO = os.fdopen(errors[0], "rb")

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= end:
                raise subprocess.TimeoutExpired("tool", timeout)
            else:
                time.sleep(0.001)
        return self.returncode


@cache
def _compiled(source: bytes) -> CodeType:
    """Of all nodes that have the tool."""
    return compile(source, "tool", "exec")


def _run(argv: Sequence[str], tool: CodeType) -> int:
    try:
        exec(tool, {"__name__": "__main__", "__file__": argv[0]})
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def popen(argv: Sequence[str], env: Mapping[str, str], **settings: Any) -> Done | Fork | subprocess.Popen[bytes]:
    """Start a tool, in place of subprocess.Popen; one that is not Python as always."""
    words = list(argv)
    path = os.path.realpath(words[0])
    if path.endswith(ETHTOOL):
        words[0] = f"{path.removesuffix('bin/ethtool')}roce/ethtool"
        path = os.path.realpath(words[0])
    try:
        with open(path, "rb") as stream:
            source = stream.read() if stream.read(len(PYTHON)) == PYTHON else b""
    except OSError:
        source = b""
    if not source:
        return subprocess.Popen(argv, env=dict(env), **settings)
    here = os.getpid() == PARENT and threading.current_thread() is threading.main_thread()
    here = here and os.path.basename(words[0]) not in STARTING
    return (Done if here else Fork)(words, _compiled(source), env)
