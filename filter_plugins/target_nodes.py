# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return the group that a play targets, or fail with the reason for none. Documented in target_nodes.yml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ansible import context
from ansible.errors import AnsibleFilterError
from ansible.inventory.manager import split_host_pattern
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import did_you_mean, error_text
from ansible_collections.busbar.fabric.plugins.plugin_utils import ansible_core, suite

GROUP = "gpu_nodes"
FIRST = " For a first verdict without an inventory: busbar check, or busbar check -i 'host1,host2,'"
# Tags of Ansible, and that of busbar measure, which no task has.
_TAGS = ("all", "always", "never", "tagged", "untagged", "busbar_locks_only")


def target_nodes(
    groups: Mapping[str, Sequence[str]], selected: Sequence[str], limit: str | None, sources: Sequence[str] | None
) -> str:
    """Return the group's name, for ``hosts:``. A filter there runs even when no host matches, a task would not."""
    if context.CLIARGS.get("syntax"):
        return GROUP
    if why := ansible_core.unsupported():
        raise AnsibleFilterError(why)
    if why := _unknown_tag(context.CLIARGS):
        raise AnsibleFilterError(why)
    where = ", ".join(str(source) for source in sources or []) or "none: name one with -i"
    missing = [str(source) for source in sources or [] if "," not in str(source) and not Path(str(source)).exists()]
    if missing:
        raise AnsibleFilterError(f"inventory {', '.join(missing)} does not exist; pass an existing one with -i")
    nodes = groups.get(GROUP)
    if nodes is None:
        raise AnsibleFilterError(f"the inventory ({where}) has no group {GROUP}; put the GPU nodes into it.{FIRST}")
    if not nodes:
        raise AnsibleFilterError(f"the group {GROUP} of the inventory ({where}) is empty.{FIRST}")
    if limit is not None and not _patterns(limit):
        why = "is empty, and Ansible takes an empty limit for all hosts; name hosts, or leave it out"
        raise AnsibleFilterError(f"--limit {limit!r} {why}")
    if not set(nodes) & set(selected):
        raise AnsibleFilterError(f"--limit {limit!r} leaves no host of the group {GROUP}")
    return GROUP


def _unknown_tag(given: Mapping[str, Sequence[str]]) -> str:
    """Return which tag no role has, with the nearest; "" where a playbook of the user may have its own tags."""
    folder = Path(suite.__file__).resolve().parent
    ours = {root / name for root in folder.parents[:2] for name in ("", "playbooks")}
    for playbook in given.get("args") or ():
        if not playbook.startswith("busbar.fabric.") and Path(playbook).resolve().parent not in ours:
            return ""
    known = (*suite.ROLES, *_TAGS)
    unknown = [tag for name in ("tags", "skip_tags") for tag in given.get(name) or () if tag not in known]
    return f"no role has the tag {unknown[0]!r}{did_you_mean(unknown[0], known)}" if unknown else ""


def _patterns(limit: str) -> list[str]:
    """Return the patterns in a limit. An @file is read, as Ansible does: an empty one would again mean all hosts."""
    patterns: list[str] = []
    for pattern in split_host_pattern(limit):
        if pattern.startswith("@"):
            try:
                lines = Path(pattern[1:]).read_text().splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise AnsibleFilterError(f"--limit {pattern} cannot be read: {error_text(error)}") from None
            patterns += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        elif pattern.strip():
            patterns.append(pattern)
    return patterns


class FilterModule:
    def filters(self) -> dict[str, Callable[..., str]]:
        return {"target_nodes": target_nodes}
