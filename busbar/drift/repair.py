# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command that mends a group of findings, ready to copy; none where a person has to do something first."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core import advice

from .. import ROOT

# More names than this are not copied from a page: `busbar report --nodes` writes them into a file.
NAMES = 20
# What Ansible would take for a pattern, like `*` or `!`, could widen the limit.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def command(fix: str, hosts: Sequence[str], inventory: Sequence[str], again: Sequence[str], group: str) -> str:
    """Empty where the fix is no run of site.yml. again: the command that shows the night. group: its fingerprint."""
    found = advice.parse(fix)
    if not found or not hosts or not all(_PLAIN.fullmatch(host) for host in hosts):
        return ""
    playbook = "site.yml" if (ROOT / "site.yml").exists() else "busbar.fabric.site"
    argv = ["ansible-playbook", playbook, *(word for path in inventory for word in ("-i", path))]
    argv += found.argv
    if len(hosts) <= NAMES:
        return shlex.join([*argv, "--limit", ",".join(hosts)])
    file = f"nodes-{group}"
    listed = shlex.join([*again, "--nodes", group])
    # The playbook itself refuses an empty file.
    return f"{listed} > {file} && {shlex.join([*argv, '--limit', '@' + file])}"
