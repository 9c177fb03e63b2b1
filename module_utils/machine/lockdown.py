# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the kernel's lockdown, which Secure Boot enables: even root cannot write PCI registers from user space then."""

from __future__ import annotations

import re

from ..core.host import Host, ParseError
from . import pci

LOCKDOWN = "/sys/kernel/security/lockdown"


def read(host: Host) -> str:
    """Return ``integrity`` or ``confidentiality``; "" for none, or if it cannot be read: the later write then fails."""
    return pci.read_value(host, LOCKDOWN, parse, []) or ""


def parse(text: str) -> str:
    """Parse /sys/kernel/security/lockdown: ``integrity`` in ``none [integrity] confidentiality``.

    "" for none. Raises ParseError where no known word is in brackets.
    """
    match = re.search(r"\[(none|integrity|confidentiality)\]", text)
    if match is None:
        raise ParseError("%r names no lockdown like [none]" % text[:80])
    return match.group(1).replace("none", "")
