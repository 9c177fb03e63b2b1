# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build the command of a repair, to copy from any directory; none where a person has to do something else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command

# Folder of a checkout; an installed collection has its playbooks by name.
_TOP = Path(__file__).resolve().parent.parent
# Names that are copied from a page; with more, `busbar report --nodes` writes them into a file.
NAMES = 20
# Plain names: a pattern like `*` or `!` could widen the limit.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# A playbook beside site.yml in advice, which needs all nodes.
_PLAYBOOK = re.compile(r"ansible-playbook playbooks/(\w+)\.yml -i INVENTORY((?: -e (?:'[^']*'|[^\s;,]+))*)")


def command(
    fix: str, hosts: Sequence[str] | str, inventory: Sequence[str], again: Sequence[str] = (), group: str = ""
) -> str:
    """Return the command line that ``fix`` means; empty where it names none that can be completed.

    hosts: names, or the limit of a run that judged the same hosts, "" for none.
    again: the command that shows the night, and group: its fingerprint there, where many hosts go through a file.
    """
    found = fix_command.parse(fix)
    other = _PLAYBOOK.search(fix) if found is None else None
    if other:
        return shlex.join(_argv(f"playbooks/{other[1]}", inventory) + shlex.split(other[2]))
    if found and isinstance(hosts, str):
        return shlex.join([*_argv("site", inventory), *found.argv, *(["--limit", hosts] if hosts else [])])
    if not found or not hosts or not all(_PLAIN.fullmatch(host) for host in hosts):
        return ""
    argv = _argv("site", inventory) + found.argv
    if len(hosts) <= NAMES:
        return shlex.join([*argv, "--limit", ",".join(hosts)])
    if not again:
        return ""
    file = f"nodes-{group}"
    listed = shlex.join([*again, "--nodes", group])
    # The playbook itself refuses an empty file.
    return f"{listed} > {file} && {shlex.join([*argv, '--limit', '@' + file])}"


def _argv(playbook: str, inventory: Sequence[str]) -> list[str]:
    path = _TOP / f"{playbook}.yml"
    name = str(path) if path.exists() else f"busbar.fabric.{playbook.rpartition('/')[2]}"
    return ["ansible-playbook", name, *(word for source in inventory for word in ("-i", source))]
