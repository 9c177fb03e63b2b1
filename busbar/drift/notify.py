# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Notify people of a run: by a program of the site, or a POST to a webhook.

The message (text.brief) names checks and nodes, and holds no output of tools. A webhook's address is a password: it is
read from a file, and messages repeat only its host.
"""

from __future__ import annotations

import html
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import http_client

# Seconds. The run is over by then, but its lock is held.
TIMEOUT = 60.0


class NotifyError(RuntimeError):
    """No notification was sent; the message has the reason."""


def run(argv: Sequence[str], text: str, code: int, new: int) -> None:
    """Run the program with the text on standard input, BUSBAR_EXIT_CODE and BUSBAR_NEW set. Raises NotifyError."""
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
        raise NotifyError(f"{argv[0]} ended with {done.returncode} and printed: {said[-1][:300]}")


def post(file: Path, text: str, code: int, new: int) -> None:
    """Post to the address in a file; Slack, Mattermost and others show ``text``. Raises NotifyError."""
    try:
        address = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise NotifyError(f"webhook's file {file} cannot be read: {error.strerror}") from error
    except ValueError:
        raise NotifyError(f"webhook's file {file} holds no address") from None
    # Markup of a chat begins with <, as in <!channel>.
    data = {"text": html.escape(text, quote=False), "exit_code": code, "new": new}
    headers = {"Content-Type": "application/json", "User-Agent": "busbar"}
    body = json.dumps(data).encode()
    try:
        status, _body = http_client.request(address, "POST", body, headers, seconds=TIMEOUT, proxies=True)
    except http_client.HttpError as error:
        raise NotifyError(f"webhook of {file}: {error}") from error
    if not 200 <= status < 300:
        raise NotifyError(f"webhook of {file} returned {status}")
