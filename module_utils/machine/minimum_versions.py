# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge versions against the first ones with the fixes of security bulletins, or against the site's own minimums.

A version belongs to a line: a driver branch (580), a train of a NIC's firmware (28.43), a minor release of runc (1.3).
Each line has its own minimum. A version of a line without one is unknown, never good.
Sources: NVIDIA's security bulletins by number (repository NVIDIA/product-security), and GitHub's security advisories.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding

VARIABLE = "busbar_minimum_versions"
# Word of the variable: all minimums of the table.
BULLETINS = "bulletins"
# Bulletin or advisory, date, component, its first good versions. ConnectX-4 is 12, 4 Lx 14, 5 16, 6 20, 6 Dx and DE 22,
# 6 Lx 26, 7 28, 8 40; BlueField-2 is 24, BlueField-3 32.
_TABLE = """
5747 2026-01-28 driver 570.211.01 590.48.01
5755 2026-01-20 cuda 13.1
5821 2026-05-19 driver 535.309.01
5861 2026-09-30 driver 580.178.04 595.91.07 610.57.04 615.71.09
5850 2026-06-30 container_toolkit 1.19.1
5857 2026-07-28 dcgm 4.5.3
5699 2026-06-30 nic_firmware 12.28.4702 14.32.1908 20.35.8002 20.39.8002 20.43.8002 22.35.8002 22.39.8002 22.43.8002
5699 2026-06-30 nic_firmware 24.35.8002 24.39.8002 24.43.8002 26.35.8002 26.39.8002 26.43.8002 28.35.8002 28.39.8002
5699 2026-06-30 nic_firmware 28.43.8002 28.46.3008 32.39.8002 32.43.8002 32.46.3008 40.46.3008
5847 2026-09-29 nic_firmware 16.35.8008 22.47.1020 24.47.1020 26.47.1020
GHSA-xjvp-4fhw-gc47 2026-06-22 runc 1.3.6 1.4.3 1.5.0-rc.3
"""
# Numbers of a version that make its line.
_LINES = {"driver": 1, "nic_firmware": 2, "runc": 2, "container_toolkit": 0, "dcgm": 0, "cuda": 0}
# Of these a line without a minimum is affected where a later one has one: all versions before that are.
_AFFECTED_BEFORE = ("nic_firmware", "runc")
# Train of NIC firmware of a general release, such as 46.3008, of which the bulletins say "or newer".
_GENERAL = 46
_VERSION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6}){0,3})(?:-rc\.?([0-9]{1,3}))?")
FORM = re.compile(r"%s|(?:%s) %s" % (BULLETINS, "|".join(_LINES), _VERSION.pattern))

_WHY = "earlier versions have vulnerabilities that a security bulletin describes; the network path is as fast with them"
DRIVER = Check(
    "platform.driver_minimum",
    why=_WHY,
    fix="on a drained node, install NVIDIA driver %s or newer of its branch, and reboot",
    severity="minor",
)
"Only with `busbar_minimum_versions`: has the NVIDIA driver at least the minimum version of its branch"
FIRMWARE = Check(
    "platform.firmware_minimum",
    why="a user with a virtual function of the NIC can run code on, or stop, firmware that lacks the fixes of NVIDIA's"
    " bulletins 5699 and 5847",
    fix="on a drained node, burn firmware %s or newer (mstflint -d ADDRESS -i FILE burn), then mstfwreset -d ADDRESS -y"
    " reset or a reboot; name it in busbar_firmware where that declares the card's",
    severity="minor",
)
"""With `busbar_minimum_versions`, or if `busbar_firmware` declares this version: has the NIC at least the minimum
firmware of its train; not in a virtual machine"""
TOOLKIT = Check(
    "platform.container_toolkit_minimum",
    why=_WHY,
    fix="install nvidia-container-toolkit %s or newer",
    severity="minor",
)
"Only with `busbar_minimum_versions`: has NVIDIA's container toolkit, if it is installed, at least the minimum version"
RUNC = Check("platform.runc_minimum", why=_WHY, fix="install runc %s or newer of its minor release", severity="minor")
"""Only with `busbar_minimum_versions`: has runc, if it is installed, at least the minimum version of its minor release;
not of a distribution's own build, which has fixes under older numbers"""
DCGM = Check("platform.dcgm_minimum", why=_WHY, fix="install DCGM %s or newer", severity="minor")
"Only with `busbar_minimum_versions`: has DCGM, if it is installed, at least the minimum version"
CUDA = Check("platform.cuda_minimum", why=_WHY, fix="install CUDA toolkit %s or newer", severity="minor")
"Only with `busbar_minimum_versions`: has the CUDA toolkit, if it is installed, at least the minimum version"
CHECKS = {
    "driver": DRIVER,
    "nic_firmware": FIRMWARE,
    "container_toolkit": TOOLKIT,
    "runc": RUNC,
    "dcgm": DCGM,
    "cuda": CUDA,
}


class Minimum(NamedTuple):
    """The first good version of a line.   source: bulletin and date, or the variable."""

    component: str
    version: str
    source: str

    @property
    def line(self) -> Tuple[int, ...]:
        return (version_key(self.version) or ())[: _LINES[self.component]]


class Installed(NamedTuple):
    """A component of a node.   subject: of its finding.   version: None if it could not be read.

    declared: in busbar_firmware.   because: id of the finding that causes another version.
    """

    component: str
    subject: str
    version: Optional[str]
    source: str
    declared: bool = False
    because: Optional[str] = None


def version_key(text: Optional[str]) -> Optional[Tuple[int, ...]]:
    """Return what versions are compared by: a release is newer than its candidates. None for no plain version."""
    found = _VERSION.fullmatch(text or "")
    if found is None:
        return None
    numbers = [int(number) for number in found[1].split(".")]
    return (*numbers, *[0] * (4 - len(numbers)), *((0, int(found[2])) if found[2] else (1, 0)))


def _read_table() -> Tuple[Minimum, ...]:
    found = []
    for row in _TABLE.strip().split("\n"):
        bulletin, date, component, *versions = row.split()
        source = "%s%s of %s" % ("bulletin " if bulletin.isdigit() else "", bulletin, date)
        found += [Minimum(component, version, source) for version in versions]
    return tuple(found)


TABLE = _read_table()
# Day of the newest bulletin in it.
DATE = max(row.split()[1] for row in _TABLE.strip().split("\n"))


def minimums(words: Sequence[str]) -> Tuple[Minimum, ...]:
    """Return the minimums that a site wants. words: of VARIABLE, each of FORM; the site's own replace the table's."""
    own: Dict[Tuple[str, Tuple[int, ...]], Minimum] = {}
    for word in words:
        component, _blank, version = word.partition(" ")
        if version:
            one = Minimum(component, version, VARIABLE)
            own[component, one.line] = one
    listed = TABLE if BULLETINS in words else ()
    return (*(one for one in listed if (one.component, one.line) not in own), *own.values())


def minimum_of(component: str, version: str, words: Sequence[str]) -> Optional[Minimum]:
    """Return the minimum that counts for a version; None where its line has none. words: of VARIABLE."""
    have = version_key(version)
    if have is None:
        return None
    line = have[: _LINES[component]]
    alike = [one for one in minimums(words) if one.component == component]
    if component == "nic_firmware":
        alike = [one for one in alike if one.line[:1] == line[:1]]
    alike.sort(key=lambda one: version_key(one.version) or ())
    of_line = next((one for one in alike if one.line == line), None)
    if of_line is not None or component not in _AFFECTED_BEFORE:
        return of_line
    later = [one for one in alike if one.line > line]
    if later:
        return later[0]
    newest = alike[-1] if alike else None
    return newest if newest is not None and component == "nic_firmware" and newest.line[1] >= _GENERAL else None


def is_older(version: str, minimum: Minimum) -> bool:
    return (version_key(version) or ()) < (version_key(minimum.version) or ())


def judge(installed: Sequence[Installed], words: Sequence[str]) -> List[Finding]:
    """Return the findings on components with a minimum. words: of VARIABLE; without any only declared firmware counts.

    A distribution's runc is left out: its number does not show its fixes.
    """
    components = {one.component for one in minimums(words)}
    findings = []
    for one in installed:
        is_wanted, version = one.component in components, one.version or ""
        minimum = minimum_of(one.component, version, words if is_wanted else [BULLETINS])
        if is_wanted:
            is_judged = one.component != "runc" or version_key(version) is not None
        else:
            is_judged = one.declared and minimum is not None and is_older(version, minimum)
        if is_judged:
            findings.append(_judge(one, minimum, words))
    return findings


def _judge(one: Installed, minimum: Optional[Minimum], words: Sequence[str]) -> Finding:
    check, have = CHECKS[one.component], one.version or "unreadable"
    own = "%s: [%s]" % (VARIABLE, ", ".join([*words, "%s %s" % (one.component, have)]))
    if minimum is not None:
        state = "drift" if is_older(have, minimum) else "ok"
        want, fix = "%s or newer (%s)" % (minimum.version, minimum.source), check.fix % minimum.version
        fix += "; or, if the site accepts this version, set %s" % own
        return check.judge(one.subject, state, want, have, one.source, fix, because=one.because)
    listed = [each.version for each in minimums(words) if each.component == one.component]
    want = "a version of a line with a minimum: %s" % ", ".join(listed)
    fix = "install a version of such a line; or, if the site accepts this version, set %s" % own
    if version_key(one.version) is None:
        fix = "read %s on the node, and repair what it reports" % one.source
    return check.judge(one.subject, "unknown", want, have, one.source, fix)


def older_declarations(firmware: Mapping[str, str], words: Sequence[str]) -> List[str]:
    """Return a sentence for each declared firmware below its minimum. firmware: busbar_firmware, PSID to version."""
    is_wanted = any(one.component == "nic_firmware" for one in minimums(words))
    found = []
    for board, version in sorted(firmware.items()):
        minimum = minimum_of("nic_firmware", version, words if is_wanted else [BULLETINS])
        if minimum is not None and is_older(version, minimum):
            text = "busbar_firmware declares %s for %s, which is older than %s (%s): declare that or newer"
            found.append(text % (version, board, minimum.version, minimum.source))
    return found
