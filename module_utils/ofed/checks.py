# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare the checks of OFED, what is wanted of a node, and the commands that several planners share."""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Sequence, Tuple

from ..change import written
from ..core import fix_command
from ..core.check import Check
from ..core.plan import Command
from .dkms import Build
from .packages import Packages, System
from .read import OPENIBD, UMAD_LIST, OfedState

FLAVOURS = ("doca-ofed", "mlnx-ofed", "inbox")
MASK = Command(("systemctl", "mask", "--runtime", OPENIBD), "packages must not restart the driver")
UNMASK = Command(("systemctl", "unmask", "--runtime", OPENIBD), "openibd may be started again")
RESTART = Command(("systemctl", "restart", OPENIBD), "load the driver that is installed", "driver", 300.0)
UMAD_TEXT = written.seal(UMAD_LIST, "# Written by Busbar (role mofed) for the fabric manager.\nib_umad\n")
# On the kernel's side; user space has the vendor's libraries until the distribution's replace them.
OF_KERNEL = re.compile(
    r"(mlnx-ofed-kernel-(dkms|utils|modules)|mlnx-(nfsrdma|nvme)-dkms|kmod-mlnx-.*|mlnx-ofa_kernel.*)"
)
RUN = fix_command.run_tag("mofed")

REPOSITORY_FILES = Check(
    "ofed.repository",
    why="packages come from one release of one repository, signed with the site's key for it",
    fix=RUN,
    aspect="persisted",
)
"Do the repository, its key and its pin on the node match the inventory"
PACKAGES = Check(
    "ofed.packages",
    why="the fleet runs one release of OFED; drivers and libraries of two releases do not fit together",
    fix=RUN,
    severity="critical",
    aspect="persisted",
)
"Is OFED's metapackage installed, of the configured release"
HOLD = Check(
    "ofed.hold",
    why="an upgrade of everything would replace the driver below running jobs",
    fix=RUN,
    aspect="persisted",
)
"Is OFED's metapackage held back from upgrades"
CONFLICT = Check(
    "ofed.conflict",
    why="packages of two OFEDs replace each other's files at every upgrade",
    fix=RUN,
    aspect="persisted",
)
"is there nothing left of another OFED"
HEADERS = Check(
    "ofed.headers",
    why="DKMS builds drivers from source when a kernel is installed, and without headers it silently does not",
    fix=RUN,
    aspect="persisted",
)
"can modules be built for each installed kernel"
DKMS = Check(
    "ofed.dkms",
    why="a kernel without them silently boots with the inbox drivers or with none",
    fix=RUN,
    aspect="persisted",
)
"Are OFED's and NVIDIA's modules built for each installed kernel"
MODULE = Check(
    "ofed.module",
    why="modprobe takes the first mlx5_core that depmod has found, whatever packages are installed",
    fix=RUN,
    aspect="persisted",
)
"""For each installed kernel: would modprobe load `mlx5_core`, `mlx5_ib`, `ib_core`, `ib_uverbs` and `rdma_cm` of
OFED (flavour `inbox`: of the kernel); a mixed stack does not load, or crashes"""
LOADED = Check(
    "ofed.loaded",
    why="the installed driver takes effect after a reboot, or after a restart of openibd if no process uses it",
    fix=fix_command.allow(RUN, "reboot"),
    severity="critical",
    disruption="driver",
)
"Is the installed OFED loaded; if not, it waits for a reboot"
NVIDIA = Check(
    "ofed.nvidia",
    why="nvidia-peermem refuses to load with an ib_core other than the one that it was built for",
    fix=RUN,
    aspect="persisted",
)
"Was nvidia-peermem built for the `ib_core` of this OFED, by the checksum of its symbol"
DEPENDENTS = Check(
    "ofed.dependents",
    why="OFED replaces the RDMA modules that this uses; without a matching build it fails after the next boot",
    fix=RUN,
    aspect="persisted",
)
"Are the modules for NFS, NVMe and Lustre over RDMA installed"
IB_UMAD = Check(
    "ofed.ib_umad",
    why="without ib_umad the fabric manager of this platform does not start, and no GPU talks to another",
    fix=RUN,
    aspect="persisted",
)
"B200 and later: is `ib_umad`, which the Fabric Manager needs, loaded now and at boot"
OPENIBD_MASK = Check(
    "ofed.openibd",
    why="Busbar masks openibd while it installs packages; a run that was killed leaves the mask until the next boot",
    fix=RUN,
    severity="minor",
)
"Is openibd not masked, as after a killed run"
READABLE = Check("ofed.readable", why="what cannot be read cannot be judged")
"Could the files and tools with OFED's state be read"


class OfedWanted(NamedTuple):
    """flavour: one of FLAVOURS.   version: of DOCA or MLNX_OFED; "" for any.

    package: the metapackage.   manage: False only reports.   repository: its URL.   key: armoured text.
    umad: the platform's fabric manager needs ib_umad.   third_party: file systems whose modules the site rebuilds
    itself.
    """

    flavour: str
    version: str
    package: str
    manage: bool
    repository: str
    key: str
    umad: bool
    third_party: Tuple[str, ...] = ()


class Attempt(NamedTuple):
    """commands: to run now.   error: " (last words)" of an earlier run that failed.   fix: of a finding."""

    commands: Tuple[Command, ...]
    error: str
    fix: str


class OfedCase(NamedTuple):
    """A node of which enough is known to plan, and what is wanted there.

    failed: argv -> last words of each command of an earlier plan that did not end well.
    """

    have: OfedState
    want: OfedWanted
    failed: Mapping[Tuple[str, ...], str]
    system: System
    packages: Packages
    builds: Tuple[Build, ...]

    def attempt(self, commands: Sequence[Command]) -> Attempt:
        """Return commands that repair something, unless Busbar does not manage OFED, or one of them has failed."""
        by_hand = "run %s" % " && ".join(map(str, commands))
        error = next((self.failed[command.argv] for command in commands if command.argv in self.failed), None)
        if error is not None:
            return Attempt((), " (%s)" % error, "%s by hand, read its output, then run this again" % by_hand)
        return Attempt(tuple(commands), "", RUN) if self.want.manage else Attempt((), "", by_hand)

    def severity(self, kernel: str) -> str:
        """Severity of what is wrong with one kernel: the one that runs and the one that boots next come first."""
        known = self.have.kernels
        return "critical" if kernel in (known.running, known.default) or known.default is None else "major"
