# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Load the module nvidia_peermem, and classify why it does not load.

It must find a peer-memory API in ib_core, which OFED has, Ubuntu's kernels have, and the upstream kernel has not.
Loaded modules are read from /sys/module: memory_peers and kallsyms do not prove that NCCL finds it.
Sources: modprobe(8); messages of kernel/module (6.12).
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Tuple

from ..core.finding import printable
from ..core.host import Host, ReadError
from ..core.plan import Command

MODULE = "nvidia_peermem"
SYS = "/sys/module/nvidia_peermem"
LOAD = Command(("modprobe", MODULE), "load nvidia_peermem, without which NCCL stages through host memory")
REBUILD = "dkms build --force %(module)s && dkms install --force %(module)s"
_LOAD_TIMEOUT = 60.0


class Reason(NamedTuple):
    """Reason of a failed load.   says: text after its name or "it".   fix may hold %(module)s, the driver's in DKMS."""

    says: str
    fix: str


NO_SYMBOLS = Reason(
    "it was built without the peer-memory symbols of OFED, or ib_core refused it",
    "install OFED's headers, then rebuild the NVIDIA module: %s; replace a precompiled driver package by the DKMS"
    " package first" % REBUILD,
)
NO_API = Reason(
    "it was built for OFED's ib_core, and the ib_core that is loaded has no peer-memory API",
    "compare modinfo -n ib_core with ofed_info -s: install OFED for the running kernel, reboot, and run this again",
)
OTHER_OFED = Reason(
    "it was built for another ib_core than the one that is loaded; loading it again does not help",
    "rebuild the NVIDIA module with the headers of the OFED that is installed: %s" % REBUILD,
)
OTHER_DRIVER = Reason(
    "it belongs to another NVIDIA driver than the one that is loaded",
    "reboot, so that driver and nvidia_peermem are of one version; then look at dkms status if it still fails",
)
NOT_INSTALLED = Reason(
    "it is not installed for the running kernel",
    "install the NVIDIA driver's modules for the kernel that uname -r names (470 or later; dkms status lists them, and"
    " DKMS needs that kernel's headers)",
)
NOT_SIGNED = Reason(
    "Secure Boot refuses it: its signing key is not enrolled",
    "enrol the key that signs DKMS modules (mokutil --import, then reboot and confirm)",
)
OTHER_KERNEL = Reason(
    "it was built for another kernel",
    "rebuild it for the running kernel: dkms autoinstall",
)
# The first that fits counts: behind "Invalid argument" may be any of those before it.
SIGNS: Tuple[Tuple[str, Reason], ...] = (
    (r"(disagrees about version of|Unknown) symbol nvidia_p2p", OTHER_DRIVER),
    (r"disagrees about version of symbol ib_", OTHER_OFED),
    (r"Unknown symbol ib_(un)?register_peer_memory_client", NO_API),
    (r"Key was rejected by service|Required key not available", NOT_SIGNED),
    (r"Exec format error|version magic", OTHER_KERNEL),
    (r"not found", NOT_INSTALLED),
    (r"Invalid argument", NO_SYMBOLS),
)


class Failure(NamedTuple):
    """A modprobe that failed: what it printed, one line, and the reason if known."""

    said: str
    reason: Optional[Reason] = None


def classify(text: str) -> Optional[Reason]:
    """Return the reason of a failed load from modprobe's output and the kernel log; None if none of SIGNS matches."""
    about = "\n".join(_about(text))
    return next((reason for sign, reason in SIGNS if re.search(sign, about)), None)


def _about(text: str) -> List[str]:
    return [line for line in text.splitlines() if "peermem" in line or "peer_mem" in line]


def log(host: Host) -> str:
    """Return the kernel log's lines on the module; "" if it may not be read: it only helps to classify."""
    try:
        return "\n".join(_about(host.run(("dmesg",)).stdout))
    except ReadError:
        return ""


def load(host: Host) -> Optional[Failure]:
    """Run LOAD. Return None if nvidia_peermem is loaded afterwards."""
    before = log(host)
    try:
        done = host.run(LOAD.argv, timeout=_LOAD_TIMEOUT, leaves=True)
        there = bool(host.listdir(SYS))
    except ReadError as error:
        return Failure(printable(str(error)))
    if done.rc == 0 and there:
        return None
    after = log(host)
    # The cause of lines of an earlier attempt may be fixed by now.
    fresh = after[len(before) :] if after.startswith(before) else after
    said = "it ended with 0, but %s is not there" % SYS if done.rc == 0 else done.last_words
    return Failure(printable(said)[:200], classify("%s\n%s\n%s" % (done.stdout, done.stderr, fresh)))
