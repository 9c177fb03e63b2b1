# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs the Python tools of simulated nodes in forks of the test's process.

Starting an interpreter and importing json, re and dataclasses is nine tenths of what such a tool costs, and a test of a
fault runs a hundred of them. What a tool is given and prints is the same; tests/site and tests/containers start them.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any, BinaryIO

PYTHON = b"#!/usr/bin/env -S python3 -IS\n"
# A shell's, which runs the Python tool of the same name for all but -S.
ETHTOOL = "usr/share/busbar-lab/bin/ethtool"


class Fork:
    """As much of subprocess.Popen as Host.run uses."""

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
                os._exit(_run(list(argv), code, environment))
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

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


@cache
def _compiled(source: bytes) -> CodeType:
    """Of all nodes that have the tool."""
    return compile(source, "tool", "exec")


def _run(argv: list[str], tool: CodeType, environment: Mapping[str, str]) -> int:
    gc.disable()
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = argv
    os.environ.clear()
    os.environ.update(environment)
    code = 0
    try:
        exec(tool, {"__name__": "__main__", "__file__": argv[0]})
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def popen(argv: Sequence[str], env: Mapping[str, str], **settings: Any) -> Fork | subprocess.Popen[bytes]:
    """Start a tool, in place of subprocess.Popen; one that is not Python as always."""
    words = list(argv)
    path = os.path.realpath(words[0])
    if path.endswith(ETHTOOL) and words[1:2] != ["-S"]:
        words[0] = f"{path.removesuffix('bin/ethtool')}roce/ethtool"
        path = os.path.realpath(words[0])
    try:
        with open(path, "rb") as stream:
            source = stream.read() if stream.read(len(PYTHON)) == PYTHON else b""
    except OSError:
        source = b""
    return Fork(words, _compiled(source), env) if source else subprocess.Popen(argv, env=dict(env), **settings)
