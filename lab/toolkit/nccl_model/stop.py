# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a program of nccl-tests ends: its exit codes and its error texts."""

from __future__ import annotations

import socket

NOT_SIMULATED = 64
USAGE_ERROR = "invalid usage (run with NCCL_DEBUG=WARN for details)"
CUDA_ERROR = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
SYSTEM_ERROR = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
REMOTE_ERROR = "remote process exited or there was a network error"


class Stop(Exception):
    """The program ends here. ``out`` and ``err`` are what it still prints, ``trace`` the line of common.cu it names."""

    def __init__(self, code: int, out: str = "", err: str = "", trace: int | None = None) -> None:
        super().__init__(code)
        self.code, self.out, self.err, self.trace = code, out, err, trace


def host_name() -> str:
    """Return this host's name as nccl-tests shows it: cut at the first dot."""
    return socket.gethostname().split(".")[0]


def nccl_failure(text: str, line: int, last_error: str) -> Stop:
    where = f"{host_name()}: Test NCCL failure common.cu:{line}"
    return Stop(3, f"{where} '{text} / {last_error}'", trace=line)


def cuda_failure(text: str) -> Stop:
    return Stop(2, f"{host_name()}: Test CUDA failure util.cu:672 '{text}'")
