# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""/etc/nccl.conf: the variables that a host's rails justify, and the canonical file.

Rails come from the profile, device names from the host. Only what facts justify is written: every further line may
become wrong. Sources: NCCL src/misc/param.cc (grammar and order), src/transport/net_ib (HCA, GID, TC),
src/graph/paths.cc (GDR level); Azure/azhpc-images components/customizations/ndv5.sh and setup_sku_customizations.sh.

The maker of a cloud's image knows its machines better than the site. So, on a machine of a recognised cloud, variables
of the image's own file stay that neither profile nor site declares and that the linter accepts. Elsewhere a variable
that the inventory does not declare is an administrator's edit, and is removed.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field, replace
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..change import written
from ..core.finding import Finding
from ..core.host import Host, ReadError
from ..core.systemd_files import unit_files, wanted_at_boot
from ..machine import platform, platform_checks
from ..machine.netdev import ROUTE_FILES
from ..machine.profile import Profile
from ..machine.rails import Rails, match
from ..machine.rdma import rocev2
from ..machine.topology import Topology
from . import grammar, net_plugins
from . import lint as nccl_lint
from . import topo_file as nccl_topo_file
from .checks import DEVICE_NAME, GID_INDEX, OWNER, RAILS, SOCKET_INTERFACE
from .lint_values import Use
from .version import Version, format_version

# From here on NCCL finds the right kind of GID, and a fixed index is wrong as soon as one shifts.
DYNAMIC_GID: Version = (2, 21, 0)
# Comment above each variable of the image, so that the next run distinguishes it from an edit.
MARK = "Retained from the nccl.conf of the image"
# NCCL joins functions of one NIC (planes), unless the site sets one of these; then it must not connect two planes.
_UNMERGED = (("NCCL_IB_MERGE_NICS", "0"), ("NCCL_NET_MERGE_LEVEL", "LOC"))
# Service of an image that writes /etc/nccl.conf at each boot, and empties it when it stops.
_WRITER = "sku-customizations.service"
# Comment above each of the site's variables.
EXTRA = "Set by the site in nccl_conf_extra."
# Begin of the comment above the variable of the network plugin.
PLUGIN = "The network plugin that jobs use"
HEADER = (
    "# Written by Busbar (role nccl_conf) from the platform profile and this host's devices.",
    "# Changes made here are overwritten. The site's own variables go into nccl_conf_extra.",
)
# The kernel allows nearly anything in names. A line break or comma would change the file's meaning.
_DEVICE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Variable(NamedTuple):
    name: str
    value: str
    reason: str  # becomes a comment, so it holds no "=" (NCCL before 2.26 would take it for an assignment)


@dataclass(frozen=True)
class Image:
    """cloud: whose image, "" where none is known.   kept: name -> value.   dropped: name -> why it does not stay."""

    cloud: str = ""
    kept: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return "%s (%s). Declare it in nccl_conf_extra, and every node is held to it." % (MARK, self.cloud)


@dataclass(frozen=True)
class Want:
    """The site's part of the intent, beside the profile. Empty text and None: not set."""

    gpudirect: str = "auto"  # auto, peermem, dmabuf, off
    dscp: Optional[int] = None  # of the lossless queue, 0 to 63; Ethernet only; -1 for none
    address_family: str = "ipv4"  # of the rails' RoCE v2 addresses; "": not set
    management_interface: str = ""
    net_plugin: Optional[str] = None  # name or path, "none" for NCCL's own networks, "" for no line
    extra: Optional[Mapping[str, str]] = None
    image: Image = field(default_factory=Image)  # what the cloud's image has set


class Derivation(NamedTuple):
    """variables: in the order of the file. blockers: why nothing can be written; then variables is empty."""

    variables: Tuple[Variable, ...]
    blockers: Tuple[Finding, ...] = ()

    @property
    def expected(self) -> Dict[str, str]:
        return {variable.name: variable.value for variable in self.variables}


Part = Iterator[Union[Variable, Finding]]  # variables, and why nothing can be written


def derive(topology: Topology, profile: Profile, want: Want, versions: Sequence[Version]) -> Derivation:
    """The variables that profile, facts and site values justify.

    versions: of the libraries that jobs use; empty where none is known.
    """
    rails = match(topology, profile)
    missing = platform.all_missing(topology, profile, platform_checks.RAIL_DEVICE)
    if missing:
        return Derivation((), tuple(map(_missing_rail, missing)))
    apart = any(str((want.extra or {}).get(name)) == value for name, value in _UNMERGED)
    parts = [*_hcas(rails, profile, apart), *_bootstrap(topology, want)]
    if any("Ethernet" in rail.link_layers for rail in profile.rails):
        parts += _roce(rails, want, versions)
    if rails.nics:
        parts += [*_gdr_level(profile, rails, want), *_topology_file(topology, profile)]
    blockers = tuple(part for part in parts if isinstance(part, Finding))
    extra = want.extra or {}
    variables = [part for part in parts if isinstance(part, Variable) and part.name not in extra]
    if want.net_plugin:
        variables.append(_net_plugin(want.net_plugin))
        plugin = net_plugins.of_settings({one.name: one.value for one in variables})
        variables = [one for one in variables if not net_plugins.ignores(plugin, one.name)]
    variables += [Variable(name, value, EXTRA) for name, value in sorted(extra.items())]
    names = {variable.name for variable in variables}
    retained = [pair for pair in sorted(want.image.kept.items()) if pair[0] not in names]
    variables += [Variable(name, value, want.image.reason) for name, value in retained]
    return Derivation((), blockers) if blockers else Derivation(tuple(variables))


def render(variables: Sequence[Variable]) -> str:
    """The canonical form that every NCCL version parses alike: NAME=VALUE, LF, no blanks, comments in column 0."""
    lines = list(HEADER)
    for variable in variables:
        lines += ["#"] + textwrap.wrap(_comment(variable.reason), 110, initial_indent="# ", subsequent_indent="# ")
        lines.append("%s=%s" % (variable.name, variable.value))
    text = "\n".join(lines) + "\n"
    return written.seal("", text, effect("", text))


def effect(path: str, text: str) -> object:
    """Return the lines as NCCL reads them: before 2.26 a comment with "=" is an assignment, and blanks count."""
    return sorted(line for line in set(text.split("\n")) if line.strip() and (line[0] != "#" or "=" in line))


def _comment(text: str) -> str:
    """Names of profiles and devices stand in reasons. NCCL before 2.26 takes a comment with "=" for an assignment."""
    return "".join(char if " " <= char <= "~" and char != "=" else "?" for char in text)


def accepted_errors(accepted: Mapping[str, object]) -> List[str]:
    """Return errors in the variables that a site accepts from elsewhere, a sentence each."""
    errors: List[str] = []
    for name, reason in accepted.items():
        if not isinstance(name, str) or _VARIABLE_NAME.fullmatch(name.partition("=")[0]) is None:
            errors.append("%r is neither NAME nor NAME=VALUE" % (name,))
        elif not isinstance(reason, str) or not reason.strip() or not reason.isprintable():
            errors.append("%s has the reason %r, expected one line of text" % (name, reason))
    return errors


def extra_errors(extra: Mapping[str, object]) -> List[str]:
    """Return errors in the site's variables, a sentence each. An odd character in one would make another line."""
    errors: List[str] = []
    for name, value in extra.items():
        if not isinstance(name, str) or _VARIABLE_NAME.fullmatch(name) is None:
            errors.append("%r is not a variable's name" % (name,))
        elif isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).isprintable():
            errors.append("%s is %r, expected one line of printable text or a whole number" % (name, value))
    return errors


def with_unset(want: Want, text: Optional[str]) -> Tuple[Want, List[str]]:
    """Take what the inventory does not set from our present file. Return notes, too.

    text: of nccl.conf.
    """
    ours = text if text and written.HEAD in text else ""
    there = grammar.settings(grammar.parse(ours))
    dscps = {str(traffic_class(dscp)): dscp for dscp in range(64)}
    extra = _marked(ours, EXTRA) if want.extra is None else want.extra
    dscp = dscps.get(there.get("NCCL_IB_TC", "")) if want.dscp is None else want.dscp if want.dscp >= 0 else None
    family = want.address_family or ("ipv6" if "NCCL_IB_ADDR_FAMILY" in there else "ipv4")
    names = [*(extra if want.extra is None else ()), *(["NCCL_IB_TC"] if dscp not in (None, want.dscp) else ())]
    names += ["NCCL_IB_ADDR_FAMILY"] if family == "ipv6" and not want.address_family else []
    plugin = _marked(ours, PLUGIN) if want.net_plugin is None else {}
    if plugin:
        want, names = replace(want, net_plugin=next(iter(plugin.values()))), [*names, *plugin]
    said = "nccl.conf retains %s, not set in the inventory: not judged; nccl_conf_extra: {}, busbar_roce: {} remove it"
    said = said.replace(" remove", ' and busbar_nccl_net_plugin: "" remove') if plugin else said
    return replace(want, extra=extra, dscp=dscp, address_family=family), [said % ", ".join(names)] if names else []


def _missing_rail(found: Finding) -> Finding:
    want = "a device for %s" % found.subject
    return RAILS.judge(found.subject, "unknown", want, found.have, found.source, because=found)


def _hcas(rails: Rails, profile: Profile, apart: bool) -> Part:
    names = []
    planes = {rail.number: ":%d:%d" % (rail.nic, rail.plane) for rail in profile.rails if rail.planes > 1 and apart}
    for number, nic in sorted(rails.nics.items()):
        if nic.rdma is None:
            raise AssertionError("rails.match returned a NIC without an RDMA device")
        name = nic.rdma.name
        several = nic.port and (len(nic.rdma.ports) > 1 or number in planes)
        names.append("%s:%d" % (name, nic.port.number) + planes.get(number, "") if nic.port and several else name)
        yield from _odd_name("rail %d" % number, name, nic.rdma.source)
    reason = (
        "The RDMA device of each rail in rail order (profile %s). The leading equals sign makes the names exact;"
        " without it mlx5_1 also takes in mlx5_10." % profile.name
    )
    reason += " Behind the port: NIC and plane, since NCCL does not join them here." if planes else ""
    if names:
        yield Variable("NCCL_IB_HCA", "=" + ",".join(names), reason)


def _odd_name(subject: str, name: str, source: str) -> Part:
    if _DEVICE_NAME.fullmatch(name) is None:
        want = "a name of letters, digits, '_', '.' and '-'"
        yield DEVICE_NAME.judge(subject, "unknown", want, repr(name[:80]), source)


def _bootstrap(topology: Topology, want: Want) -> Part:
    name = "NCCL_SOCKET_IFNAME"
    interface = want.management_interface
    reason = "Bootstrap traffic uses the interface named in busbar_management_interface, and no other."
    problems = [str(problem) for problem in topology.problems if problem.source in ROUTE_FILES]
    if not interface:
        # Where one family's routes cannot be read, the other's default route may not be the one that wins.
        if not topology.routes or problems:
            have = "; ".join(problems) or "no default route"
            yield SOCKET_INTERFACE.judge(name, "unknown", "the management interface", have, ", ".join(ROUTE_FILES))
            return
        interface = topology.routes[0].netdev
        reason = (
            "Bootstrap traffic uses the interface of the default route (%s), and no other: docker0 or a storage network"
            " would do for NCCL, too." % topology.routes[0].source
        )
    yield from _odd_name(name, interface, "the interface's name")
    yield Variable(name, "=" + interface, reason)


def _roce(rails: Rails, want: Want, versions: Sequence[Version]) -> Part:
    if any(version < DYNAMIC_GID for version in versions):
        yield _gid_index(rails, want.address_family, versions)
    elif want.address_family == "ipv6":
        reason = "The rails' addresses are IPv6 (busbar_roce.address_family)."
        yield Variable("NCCL_IB_ADDR_FAMILY", "AF_INET6", reason)
    if want.dscp is not None:
        reason = "Traffic class of the fabric's lossless queue: DSCP %d (busbar_roce.dscp) shifted left by two."
        yield Variable("NCCL_IB_TC", str(traffic_class(want.dscp)), reason % want.dscp)


def traffic_class(dscp: int) -> int:
    """Return NCCL_IB_TC for a DSCP; the device sets the two bits of ECN."""
    return dscp << 2


def _gid_index(rails: Rails, address_family: str, versions: Sequence[Version]) -> Union[Variable, Finding]:
    name, kind = "NCCL_IB_GID_INDEX", "IPv4" if address_family == "ipv4" else "IPv6"
    oldest = format_version(min(versions))
    gids = {number: nic.port and rocev2(nic.port, address_family) for number, nic in rails.nics.items()}
    indexes = {number: gid.index if gid else None for number, gid in gids.items()}
    if len({*indexes.values()}) == 1 and None not in indexes.values():
        reason = "NCCL %s does not find the RoCE v2 %s GID automatically; it has this index on every rail."
        return Variable(name, str(next(iter(indexes.values()))), reason % (oldest, kind))
    each = ["rail %d: %s" % (rail, "none" if index is None else index) for rail, index in indexes.items()]
    want = "one index of the RoCE v2 %s GID for all rails" % kind
    source = "/sys/class/infiniband/*/ports/*/gid_attrs/types"
    have = ", ".join(sorted(each))
    return GID_INDEX.judge(name, "unknown", want, have, source, why=GID_INDEX.why % oldest)


def _gdr_level(profile: Profile, rails: Rails, want: Want) -> Part:
    """Yield NCCL_NET_GDR_LEVEL; nothing where NCCL's default (PXB) is right."""
    mode, name = want.gpudirect, "NCCL_NET_GDR_LEVEL"
    paths = {path for rail in profile.rails for path in rail.paths.values()}
    if mode == "off":
        yield Variable(name, "LOC", "GPUDirect RDMA is switched off by the site (busbar_gpudirect).")
    elif mode == "auto" and any(nic.role == "vf" for nic in rails.nics.values()):
        return  # A guest hides the distance of a virtual function from a GPU: NCCL needs a topology file.
    elif "SYS" in paths and mode != "auto":
        reason = "The profile puts rails across sockets from their GPUs, and busbar_gpudirect requires GPUDirect."
        yield Variable(name, "SYS", reason)
    elif paths & {"PHB", "NODE"}:
        reason = "The profile puts rails behind the host bridge (PHB or NODE); NCCL's default ends at PXB."
        yield Variable(name, "PHB", reason)


def _net_plugin(declared: str) -> Variable:
    """Return the variable by which jobs load the declared plugin, or none."""
    plugin = net_plugins.of_library(declared)
    by_name = plugin is not None and "/" not in declared
    name, value = plugin.setting if plugin is not None and by_name else (net_plugins.NAME, declared)
    return Variable(name, value, "%s (busbar_nccl_net_plugin)." % PLUGIN)


def _topology_file(topology: Topology, profile: Profile) -> Part:
    if profile.topology_file and topology.virtualization.is_vm:
        reason = "This virtual machine does not show which NIC is near which GPU; the cloud's file does (profile %s)."
        yield Variable(nccl_topo_file.NAME, profile.topology_file, reason % profile.name)


# -- the file of a cloud's image ---------------------------------------------------------------------------------------


def read_image(text: Optional[str], cloud: str, use: Use) -> Image:
    """Return the variables of the present nccl.conf."""
    if not text or not cloud:
        return Image(cloud)
    kept: Dict[str, str] = {}
    dropped: Dict[str, str] = {}
    for name, value in _image_settings(text).items():
        said = nccl_lint.lint_variable(name, value, "nccl.conf", use)
        if not value.isprintable() or not value or not name.isprintable():
            dropped[ascii(name)[1:-1]] = "its value is not a line of text"
        elif said:
            dropped[name] = said[0].why
        else:
            kept[name] = value
    return Image(cloud, kept, dropped)


def _image_settings(text: str) -> Dict[str, str]:
    """Return name -> value: all of the image's file; of a file of the suite, those below MARK."""
    return _marked(text, MARK) if written.HEAD in text else grammar.settings(grammar.parse(text))


def _marked(text: str, mark: str) -> Dict[str, str]:
    """Name -> value of the variables below a comment that begins with ``mark``."""
    found: Dict[str, str] = {}
    marked = False
    for line in grammar.parse(text):
        if line.raw.startswith("# " + mark):
            marked = True
        elif line.name is not None and line.value is not None:
            if marked:
                found.setdefault(line.name, line.value)
            marked = False
    return found


def judge_owner(host: Host, path: str, cloud: str) -> Tuple[Finding, ...]:
    """Judge who writes the file that NCCL reads on a cloud's machine."""
    if not cloud or path != "/etc/nccl.conf":
        return ()
    want, unit = "nothing", _WRITER
    try:
        if unit_files(host, unit) and wanted_at_boot(host, unit):
            return (OWNER.judge(path, "not_owned", want, "%s (%s)" % (unit, cloud), unit, OWNER.fix % unit),)
    except ReadError as error:
        return (OWNER.judge(path, "unknown", want, str(error), unit, "look at systemctl status %s" % unit),)
    return (OWNER.judge(path, "ok", want, want, unit),)


def image_notes(image: Image, extra: Mapping[str, str], written: Mapping[str, str]) -> List[str]:
    """extra: what the site declares.   written: all that nccl.conf is to hold."""
    pairs = [pair for pair in sorted(image.kept.items()) if written.get(pair[0]) == pair[1] and pair[0] not in extra]
    stays = "nccl.conf retains these lines of the image (%s): %s; declare them in nccl_conf_extra"
    goes = "nccl.conf does not keep %s, which the image (%s) sets: %s"
    found = [stays % (image.cloud, ", ".join("%s=%s" % pair for pair in pairs))] if pairs else []
    dropped = [(name[:80], image.cloud, why) for name, why in sorted(image.dropped.items()) if name not in written]
    return found + [goes % each for each in dropped]
