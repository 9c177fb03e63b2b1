# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tells people of a night: a program of the site's, or a POST to a webhook.

What is told (text.brief) names checks and nodes, and nothing that a tool has said. A webhook's address is a password:
it is read from a file, and no message repeats more of it than the host.
"""

from __future__ import annotations

import html
import http.client
import json
import os
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from email.message import Message
from pathlib import Path
from typing import IO

# Seconds. The run is over by then, but its lock is held.
TIMEOUT = 60.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class NotifyError(RuntimeError):
    """Nobody was told; the message says why."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect may lead to a host without a certificate, and turns the POST into a GET."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def run(argv: Sequence[str], text: str, code: int, new: int) -> None:
    """The program gets the text on standard input, and BUSBAR_EXIT_CODE and BUSBAR_NEW. Raises NotifyError."""
    environment = {**os.environ, "BUSBAR_EXIT_CODE": str(code), "BUSBAR_NEW": str(new)}
    try:
        done = subprocess.run(
            argv, input=text.encode(), env=environment, capture_output=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotifyError(f"{argv[0]} did not end within {TIMEOUT:g} s and was killed") from error
    except OSError as error:
        raise NotifyError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise NotifyError(f"{argv[0]} ended with {done.returncode} and said: {said[-1][:300]}")


def post(file: Path, text: str, code: int, new: int) -> None:
    """file: holds the address. ``text`` is what Slack, Mattermost and others show. Raises NotifyError."""
    address, host = _address(file)
    # Markup of a chat begins with <, as in <!channel>.
    data = {"text": html.escape(text, quote=False), "exit_code": code, "new": new}
    request = urllib.request.Request(
        address, json.dumps(data).encode(), {"Content-Type": "application/json", "User-Agent": "busbar"}
    )
    tls = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    try:
        urllib.request.build_opener(_NoRedirect, tls).open(request, timeout=TIMEOUT).close()
    except urllib.error.HTTPError as error:
        raise NotifyError(f"webhook {host} answered {error.code}") from error
    except urllib.error.URLError as error:
        raise NotifyError(f"webhook {host}: {error.reason}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        # Some of their messages quote the address.
        raise NotifyError(f"webhook {host}: {type(error).__name__}") from error


def _address(file: Path) -> tuple[str, str]:
    """The address in the file, and its host."""
    try:
        address = file.read_text(encoding="ascii").strip()
        parts = urllib.parse.urlsplit(address)
        host = parts.hostname
    except OSError as error:
        raise NotifyError(f"webhook's file {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise NotifyError(f"webhook's file {file} holds no address") from error
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)):
        raise NotifyError(f"webhook's file {file} has to hold one https:// address")
    return address, host
