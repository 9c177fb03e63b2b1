# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A real sshd on loopback, with its own port and keys, that lets in whoever runs the tests."""

from __future__ import annotations

import contextlib
import getpass
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import debian

# Lets in whoever has the key of ``top``, and nobody else.
BY_KEY = """\
HostKey {top}/host_key
AuthorizedKeysFile {top}/id.pub
PidFile none
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PasswordAuthentication no
"""
CONFIG = "Port {port}\nListenAddress 127.0.0.1\n" + BY_KEY


@contextlib.contextmanager
def sshd(top: Path, more: str = "") -> Iterator[dict[str, Any]]:
    """The variables of a host that is reached by it. top/known_hosts is empty: nobody has seen its key.

    more: lines of sshd_config.
    """
    lacking = debian.install({"sshd": "openssh-server", "ssh": "openssh-client"})
    assert not lacking, lacking
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("host_key", "id"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", top / name], check=True)
    (top / "known_hosts").write_text("")
    (top / "sshd_config").write_text(CONFIG.format(top=top, port=port) + more)
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", top / "sshd_config"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            assert time.monotonic() < deadline, "sshd does not listen after a minute"
            time.sleep(0.05)
        yield {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(top / "id"),
            "ansible_ssh_common_args": f"-F none -o IdentitiesOnly=yes -o UserKnownHostsFile={top}/known_hosts",
        }
    finally:
        server.terminate()
        server.wait()
