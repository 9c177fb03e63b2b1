# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of whether a node could sweep at all. The control node judges what the sweeps show."""

from __future__ import annotations

from ..core.check import Check

TOOLS = Check(
    "ib_fabric.tools",
    why="the fabric is queried by infiniband-diags; without one of its tools the switches are not checked",
    fix="install it on this host: apt-get install infiniband-diags (dnf install infiniband-diags on EL)",
)
"""Are the tools that query the fabric installed, and may root run them"""
UMAD = Check(
    "ib_fabric.umad",
    why="a fabric query needs /dev/infiniband/umad*, which only root may open, and an InfiniBand port that is up; an"
    " Ethernet port has no subnet",
    fix="run the play as root (become), load the device (modprobe ib_umad), and look at ls -l /dev/infiniband",
)
"""Can the host open the management device of the InfiniBand port that it sweeps through; `unsupported` where its ports
are Ethernet"""
ANSWER = Check(
    "ib_fabric.answer",
    why="if a tool hangs or the subnet manager does not respond, the state of the fabric is unknown",
    fix="run the command on the host to see what it waits for; a device that drops management packets delays each"
    " query",
)
"""Did the tools end in time, and did the subnet manager of each port respond"""

MANAGER_LOG = Check(
    "ib_fabric.manager_log",
    why="a subnet manager that cannot reach or configure a node leaves it without routes, or with old ones",
    severity="minor",
)
"Are the logs of the subnet managers free of errors and of an exit, in the last 24 hours"
UNHEALTHY = Check(
    "ib_fabric.unhealthy_port", why="the subnet manager counts the port as unhealthy; it may ignore or isolate it"
)
"Does the subnet manager list no port as unhealthy"
