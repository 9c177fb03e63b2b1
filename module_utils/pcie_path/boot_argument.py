# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan ``pci=config_acs=``: the kernel itself sets ACS, before it groups devices, instead of the unit afterwards.

Of several such arguments the kernel takes the last alone, so one names all bridges. Its flags are the bits 4 to 0 of
the control word; x leaves one. Sources: kernel-parameters.txt (Linux 6.11); linux-rdma/rdma-core rdma_topo.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import List, Optional, Tuple

from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError
from ..core.plan import Plan
from ..driver.kernels import RELEASE, parse_release
from ..kernel_args import plan as kernel_args
from ..kernel_args.grub_settings import DROPIN, parse_dropin
from ..kernel_args.line import Arg, parse, split
from ..kernel_args.read import BLS_ENTRIES, Boot
from ..kernel_args.read import read as read_boot

SUBJECT, OWNER = "pci=config_acs", "pcie_path_acs_owner"
_ITEM, _FIRST = "config_acs=", (6, 11)
# The kernel cuts longer lines off (COMMAND_LINE_SIZE).
_LONGEST = 2048
_BITS = (0x10, 0x08, 0x04, 0x02, 0x01)

ARGUMENT = Check(
    "pcie_path.argument",
    why="the kernel sets ACS by its argument at boot, and only one of that name counts: its owner has to be known",
    fix=fix_command.run_tag("pcie_path"),
)
"""With `pcie_path_acs_owner: kernel`: will the next boot have `pci=config_acs=` with all bridges (persisted), and has
this boot (live); `not_owned` where another file sets it"""


_at_boot = partial(ARGUMENT.judge, SUBJECT, aspect="persisted")


def value(bridges: List[Tuple[str, int, int]]) -> str:
    """Return the argument's value.   bridges: address, bits that are set by it, and what they shall be."""
    flags = {
        address: "".join(str(int(bool(word & bit))) if mask & bit else "x" for bit in _BITS)
        for address, mask, word in bridges
    }
    return _ITEM + ";".join("%s@%s" % (flags[address], address) for address in sorted(flags))


def is_known(release: str) -> bool:
    """Return whether the kernel has the argument."""
    with suppress(ParseError):
        return parse_release(release) >= _FIRST
    return False


def plan(host: Host, release: str, wanted: str, cause: Optional[Finding]) -> Plan:
    """Plan the argument.   wanted: its value; "" for none, and then only Busbar's own one is removed.

    cause: the finding by which the bridges are not known. Raises ReadError and ParseError.
    """
    if not wanted and _ITEM not in (host.read_system(DROPIN) or ""):
        return Plan()
    if wanted and not is_known(release):
        fix = "boot Linux 6.11 or later, or set %s: unit, which does it meanwhile" % OWNER
        return Plan((_at_boot("unsupported", wanted, "Linux %s" % release, RELEASE, fix),))
    if cause is not None:
        have = "not judged while a GPU, a NIC or a register of one is not there"
        return Plan((_at_boot("unknown", wanted, have, RELEASE, because=cause),))
    boot = read_boot(host)
    other = _other_owner(boot)
    if wanted and other:
        again = "update-grub" if boot.kind == "grub" else "by tuned-adm profile NAME, or grubby --update-kernel=ALL"
        fix = "take config_acs out of %s and rewrite the boot entries (%s), or set %s: unit" % (other, again, OWNER)
        return Plan((_at_boot("not_owned", wanted, "set in %s" % other, other, fix),))
    if len(boot.active) + len(wanted) > _LONGEST:
        have, fix = "the kernel's line would exceed %d characters" % _LONGEST, "set %s: unit" % OWNER
        return Plan((_at_boot("unsupported", wanted, have, boot.kind, fix),))
    former = [Arg("pci", one, present=False) for one in _former(boot) if one != wanted]
    args = [*([Arg("pci", wanted)] if wanted else []), *former]
    return _renamed(kernel_args.plan(boot, args, ARGUMENT), str(args[0])).with_backup(True) if args else Plan()


def _values(line: str) -> List[str]:
    words = [parse(token) for _gap, token in split(line) if token]
    return [found for name, found in words if name == "pci" and found and _ITEM in found]


def _former(boot: Boot) -> List[str]:
    """Return the values that Busbar has set: those of its drop-in, or of boot entries, which have no owner."""
    if boot.kind == "grub":
        own = parse_dropin(boot.stored) if boot.stored else ()
        return [one.value for one in own if one.name == "pci" and one.present and one.value and _ITEM in one.value]
    return list(dict.fromkeys(found for entry in boot.entries for found in _values(entry.line)))


def _other_owner(boot: Boot) -> str:
    """Return what else sets it, "" for nothing. In a list of options it is somebody's own."""
    files = [path for path, text in (*boot.elsewhere, *boot.tuned) if _ITEM in text]
    in_list = any(not one.startswith(_ITEM) for one in _former(boot))
    return next(iter(files), BLS_ENTRIES if in_list and boot.kind == "bls" else "")


def _renamed(found: Plan, of: str) -> Plan:
    """Return the plan with the argument's own findings alone, whose subject does not change with the bridges."""
    own = {one.id: replace(one, subject=SUBJECT) for one in found.findings if one.subject == of}
    others = [one for one in found.findings if one.subject == DROPIN]
    findings = [replace(one, because=own[one.because].id if one.because in own else None) for one in own.values()]
    return found._replace(findings=(*findings, *others))
