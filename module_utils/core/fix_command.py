# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command in a finding's fix, in one form.

``run site.yml --tags mtu -e busbar_max_disruption=link for this host``, behind what has to be done first. It
names the permission that it needs and all tags that take part, so that it removes the finding.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Tuple

_COMMAND = re.compile(r"\brun (?:all of )?site\.yml(?: --tags (\w+(?:,\w+)*))?((?: -e \w+=\w+)*)")
_LEAVE = "busbar_max_disruption"


class FixCommand(NamedTuple):
    """tags: () for all roles.   disruption: the permission that it gives.   mends: nothing has to be done before.

    more: further variables that it sets, ``NAME=VALUE``.
    """

    tags: Tuple[str, ...]
    disruption: str = "none"
    mends: bool = True
    more: Tuple[str, ...] = ()

    @property
    def argv(self) -> List[str]:
        """Return the arguments after ``ansible-playbook site.yml -i INVENTORY``."""
        leave = () if self.disruption == "none" else ("%s=%s" % (_LEAVE, self.disruption),)
        words = [word for setting in (*leave, *self.more) for word in ("-e", setting)]
        return [*(["--tags", ",".join(self.tags)] if self.tags else []), *words]


def run_tag(tag: str) -> str:
    """Return the fix that runs a role. The permission that it needs is added where a plan is limited."""
    return "run site.yml --tags %s for this host" % tag


def parse(fix: str) -> Optional[FixCommand]:
    """Parse a fix; None if it contains no command of the suite."""
    found = _COMMAND.search(fix)
    if found is None:
        return None
    tags, settings = found.group(1), found.group(2).split()[1::2]
    leave = [one for one in settings if one.startswith(_LEAVE + "=")]
    return FixCommand(
        tuple(tags.split(",")) if tags else (),
        leave[0].partition("=")[2] if leave else "none",
        found.start() == 0,
        tuple(one for one in settings if one not in leave),
    )


def allow(fix: str, disruption: str) -> str:
    """Return the fix with the permission that a change of this disruption needs; other fixes stay as they are."""
    found = _COMMAND.search(fix)
    if found is None or _LEAVE in found.group(2) or disruption == "none":
        return fix
    more = (",reboot" if disruption == "reboot" and found.group(1) else "") + " -e %s=%s" % (_LEAVE, disruption)
    return fix[: found.start(2)] + more + fix[found.start(2) :]
