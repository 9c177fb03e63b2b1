# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare the checks of ARP and source routing."""

from __future__ import annotations

from ..core import fix_command
from ..core.check import Check

RUN = fix_command.run_tag("multirail")

SETTINGS = Check(
    "multirail.sysctl",
    why="without them the wrong rail responds for an address, or the kernel drops packets that arrive by another rail;"
    " it uses the larger of an interface's value and that of 'all'",
    fix=RUN,
    aspect="persisted",
)
"""Does each rail's interface have the values of the policy, now (the larger of its value and that of `all`) and
after a boot"""

SOURCE_ROUTING = Check(
    "multirail.rules",
    why="without its own table a rail's traffic leaves by the rail with the first route to the subnet",
    fix=RUN,
    aspect="persisted",
)
"With source routing: does traffic from the rail's address use the rail's own table, now and after a boot"

CONFLICT = Check(
    "multirail.conflict",
    why="the kernel uses the larger of an interface's value and that of 'all', and a later file wins",
    aspect="persisted",
)
"Does no other sysctl file, live value of `all` or earlier rule override the policy; names file and line"

READABLE = Check("multirail.readable", why="what cannot be read cannot be judged")
"Could addresses, rules and routes be read"
