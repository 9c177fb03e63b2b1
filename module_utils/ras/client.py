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
from dataclasses import dataclass

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
            talk = _Talk(connection, source, bytearray())
            deadline = time.monotonic() + greeting
            step = "its greeting"
            connection.sendall(b"client protocol 2\n")
            hello = talk.receive(deadline, step, _LINE_LIMIT)
            if not hello.startswith("SERVER PROTOCOL "):
                raise ReadError(source, "greets with %.60r, expected 'SERVER PROTOCOL N': no RAS" % hello)
            step = "its response to 'set format json'"
            connection.sendall(b"set format json\n")
            if talk.receive(deadline, step, _LINE_LIMIT) != "OK":
                raise ReadError(source, TEXT_ONLY)
            step = "its status"
            seconds = status
            connection.sendall(b"status\n")
            return parse_json(talk.receive(time.monotonic() + status, step, ANSWER_LIMIT, b""))
    except socket.timeout:
        raise ReadError(source, "%s is not there within %g s" % (step, seconds)) from None
    except OSError as error:
        raise ReadError(source, "%s failed: %s" % (step, error.strerror or error)) from error


def name(address: str, port: int) -> str:
    """Return the port's name in findings."""
    return "RAS at %s" % (("[%s]:%d" if ":" in address else "%s:%d") % (address, port))


@dataclass
class _Talk:
    """A connection. received: what has not been read yet."""

    connection: socket.socket
    source: str
    received: bytearray

    def receive(self, deadline: float, what: str, limit: int, end: bytes = b"\n") -> str:
        """Return the text before ``end``; with b"", all until the connection is closed."""
        while not end or end not in self.received:
            left = deadline - time.monotonic()
            if left <= 0:
                raise socket.timeout(what)
            if len(self.received) > limit:
                raise ReadError(self.source, "%s has more than %d bytes" % (what, limit))
            self.connection.settimeout(left)
            more = self.connection.recv(1 << 16)
            if not more and end:
                raise ReadError(self.source, "closed the connection before %s" % what)
            if not more:
                break
            self.received += more
        data, _end, self.received = self.received.partition(end) if end else (self.received, b"", bytearray())
        try:
            return data[:limit].decode("utf-8")
        except UnicodeDecodeError as error:
            raise ReadError(self.source, "%s is not text (byte %d)" % (what, error.start)) from error
