# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Query NCCL's RAS for its status in JSON, bounded in time and size.

A query does not affect the job: RAS collects what its threads know. The process that has the port may be stopped, and
the kernel accepts the connection all the same: a client has to give up early and try again, since of several processes
that share the port (SO_REUSEPORT) another one accepts the next connection.
Sources: NCCL 2.30.7, src/ras/client.cc, client_support.cc, ras_internal.h (protocol 2).
"""

from __future__ import annotations

import socket
import time

from ..core.host import ReadError
from .answer import RasStatus, parse_json

# Seconds. A RAS thread greets at once; for the status it waits for the threads of all processes.
GREETING, STATUS = 2.0, 40.0
# Bytes of a response: 500 of JSON for each rank of each communicator.
ANSWER_LIMIT = 32 << 20
_LINE_LIMIT = 1024
TEXT_ONLY = (
    "its NCCL is older than 2.28.7, and its RAS has no JSON: start the job with 2.28.7 or later; of this job save the"
    " text of `ncclras -v` twice, and run `busbar diagnose` on it"
)


def query(address: str, port: int, greeting: float = GREETING, status: float = STATUS) -> RasStatus:
    """Return the status. Raises ReadError without a timely one of a RAS, ParseError for an invalid one."""
    source = name(address, port)
    step = "a connection"
    seconds = greeting
    try:
        with socket.create_connection((address, port), timeout=greeting) as connection:
            talk = _Talk(connection, source)
            deadline = time.monotonic() + greeting
            step = "its greeting"
            talk.send("client protocol 2")
            hello = talk.line(deadline, step)
            if not hello.startswith("SERVER PROTOCOL "):
                raise ReadError(source, "greets with %.60r, expected 'SERVER PROTOCOL N': no RAS" % hello)
            step = "its response to 'set format json'"
            talk.send("set format json")
            if talk.line(deadline, step) != "OK":
                raise ReadError(source, TEXT_ONLY)
            step = "its status"
            seconds = status
            talk.send("status")
            return parse_json(talk.rest(time.monotonic() + status, step))
    except socket.timeout:
        raise ReadError(source, "%s is not there within %g s" % (step, seconds)) from None
    except OSError as error:
        raise ReadError(source, "%s failed: %s" % (step, error.strerror or error)) from error


def name(address: str, port: int) -> str:
    """Return the port's name in findings."""
    return "RAS at %s" % (("[%s]:%d" if ":" in address else "%s:%d") % (address, port))


class _Talk:
    """A socket, and what has been received and not yet read."""

    def __init__(self, connection: socket.socket, source: str) -> None:
        self.connection = connection
        self.source = source
        self.held = b""

    def send(self, line: str) -> None:
        self.connection.sendall(line.encode("ascii") + b"\n")

    def line(self, deadline: float, what: str) -> str:
        while b"\n" not in self.held:
            if len(self.held) > _LINE_LIMIT:
                raise ReadError(self.source, "%s has no end of line within %d bytes: no RAS" % (what, _LINE_LIMIT))
            more = self._receive(deadline, what)
            if not more:
                raise ReadError(self.source, "closed the connection before %s" % what)
            self.held += more
        line, _end, self.held = self.held.partition(b"\n")
        return line[:_LINE_LIMIT].decode("utf-8", "replace")

    def rest(self, deadline: float, what: str) -> str:
        chunks, size = [self.held], len(self.held)
        while True:
            more = self._receive(deadline, what)
            if not more:
                break
            chunks.append(more)
            size += len(more)
            if size > ANSWER_LIMIT:
                raise ReadError(self.source, "%s has more than %d MiB" % (what, ANSWER_LIMIT >> 20))
        try:
            return b"".join(chunks).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ReadError(self.source, "%s is not text (byte %d)" % (what, error.start)) from error

    def _receive(self, deadline: float, what: str) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout(what)
        self.connection.settimeout(left)
        return self.connection.recv(1 << 16)
