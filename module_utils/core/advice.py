# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command in what a finding advises, in one form.

``run site.yml --tags mtu -e busbar_max_disruption=link for this host``, with "then" before it where somebody has to do
something first. Who does what it says gets there: it names the leave that it needs and the tags of all that take part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

_COMMAND = re.compile(r"(\bthen )?\brun (?:all of )?site\.yml(?: --tags (\w+(?:,\w+)*))?((?: -e \w+=\w+)*)")
_LEAVE = "busbar_max_disruption"


@dataclass(frozen=True)
class Run:
    """tags: none for all roles.   disruption: the leave that it gives.   mends: nobody has to do anything before.

    more: other variables that it sets, ``NAME=VALUE``.
    """

    tags: Tuple[str, ...]
    disruption: str = "none"
    mends: bool = True
    more: Tuple[str, ...] = ()

    @property
    def argv(self) -> List[str]:
        """What comes behind ``ansible-playbook site.yml -i INVENTORY``."""
        leave = () if self.disruption == "none" else ("%s=%s" % (_LEAVE, self.disruption),)
        words = [word for setting in (*leave, *self.more) for word in ("-e", setting)]
        return [*(["--tags", ",".join(self.tags)] if self.tags else []), *words]


def run(tag: str, hosts: str = "this host") -> str:
    """The advice to let a role mend something. What leave it needs is added where a plan is limited."""
    return "run site.yml --tags %s for %s" % (tag, hosts)


def parse(fix: str) -> Optional[Run]:
    """None where the advice names no command of the suite."""
    found = _COMMAND.search(fix)
    if found is None:
        return None
    tags, settings = found.group(2), found.group(3).split()[1::2]
    leave = [one for one in settings if one.startswith(_LEAVE + "=")]
    return Run(
        tuple(tags.split(",")) if tags else (),
        leave[0].partition("=")[2] if leave else "none",
        found.group(1) is None,
        tuple(one for one in settings if one not in leave),
    )


def allow(fix: str, disruption: str) -> str:
    """The same with the leave that a change of this disruption needs; what is another's to do stays as it is."""
    found = _COMMAND.search(fix)
    if found is None or _LEAVE in found.group(3) or disruption == "none":
        return fix
    more = (",reboot" if disruption == "reboot" and found.group(2) else "") + " -e %s=%s" % (_LEAVE, disruption)
    return fix[: found.start(3)] + more + fix[found.start(3) :]
