# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A transport to nowhere: each host gives an answer that is kept in a file. What is left is the controller's cost."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = r"""
name: stored
short_description: Answer every command from a file
description: For the bench. No host is asked.
author: Busbar contributors
options:
  answer:
    description: File that holds what a command prints. Where it lacks, a command prints nothing.
    type: path
    vars: [{name: bench_answer}]
  question:
    description: File that what is piped to a command is written to.
    type: path
    vars: [{name: bench_question}]
"""


class Connection(ConnectionBase):  # type: ignore[misc]
    transport = "stored"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        question, answer = self.get_option("question"), self.get_option("answer")
        if question and in_data:
            Path(question).write_bytes(in_data)
        return 0, Path(answer).read_bytes() if answer else b"", b""

    def put_file(self, in_path: str, out_path: str) -> None:
        raise NotImplementedError("nothing can be copied to nowhere")

    def fetch_file(self, in_path: str, out_path: str) -> None:
        raise NotImplementedError("nothing can be copied from nowhere")

    def close(self) -> None:
        self._connected = False
