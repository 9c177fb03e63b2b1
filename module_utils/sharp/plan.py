# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge whether NCCL can use SHARP, reduction in the switches of an InfiniBand fabric, on a node.

Files are read and never loaded, no tool of SHARP is run (sharp_coll_test loads the link). Only NCCL's log proves that
SHARP was used (diagnose/transport.py).
Sources: nccl-rdma-sharp-plugins 2f5ac02 (src/sharp_plugin.c), NCCL 2.30.7 (src/init.cc). Not tested on a
fabric with SHARP: docs/fabric.md#sharp lists what was never seen.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import dataclass, field
from functools import partial
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import Host, ParseError, Problem, ReadError, attempt
from ..core.plan import Plan
from ..machine.profile import Profile
from ..nccl_conf import environment, environment_sources, grammar
from ..nccl_conf import library as nccl_library
from ..nccl_conf.variables import NEVER
from ..nccl_tests import programs

CONF = "/etc/nccl.conf"
# TCP port of sharp_am, over IPoIB.
PORT = 6126
# Seconds for its response.
ANSWER = 3.0
# Gbit/s of HDR: Quantum switches of this generation on reduce large messages.
SLOWEST = 200.0
# NCCL_COLLNET_NODE_THRESHOLD and the plugin's NCCL_SHARP_GROUP_SIZE_THRESH, by default.
NODES = 2
_THRESHOLDS = {
    "NCCL_COLLNET_NODE_THRESHOLD": "nodes of a communicator",
    "NCCL_SHARP_GROUP_SIZE_THRESH": "ranks of one rail",
}
# Where NVIDIA's packages and HPC-X put both; "*" is one name.
_PLACES = (
    *("/opt/mellanox/sharp/lib", "/opt/mellanox/nccl-rdma-sharp-plugin/lib", "/usr/local/lib", "/usr/local/lib64"),
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
    *("/opt/hpcx*/sharp/lib", "/opt/hpcx*/nccl_rdma_sharp_plugin/lib"),
    *("/usr/local/hpcx*/sharp/lib", "/usr/local/hpcx*/nccl_rdma_sharp_plugin/lib"),
)
_COLL = "libsharp_coll.so"
_PLUGIN = re.compile(r"libnccl-net(?:-[\w.-]{1,64})?\.so(?:\.[\d.]{1,20})?$")
_SYMBOL = re.compile(rb"\0(ncclCollNetPlugin_v\d{1,3})\0")
_TREE = re.compile(r"/(hpcx[^/]*)/")
_LISTS = re.compile(r"libsharp0(?::[\w-]+)?\.list$")
_DPKG = "/var/lib/dpkg/info"
# As nccl/environment.py words it.
_EVERYBODY = ("jobs of all users", "logins of all users")
_ALGORITHMS = {"collnetdirect", "collnetchain", "collnet"}

_DOCS = "docs/fabric.md#sharp"
UNPROVEN = (
    "SHARP: the requirements on a node were checked; only NCCL's log proves that jobs use it: Connected CollNet on"
    " every rank (%s)" % _DOCS
)
FABRIC = Check(
    "sharp.fabric",
    why="only InfiniBand switches reduce, Quantum HDR and later, below rails of 200 Gbit/s and more",
    fix="take busbar_sharp out for these nodes",
)
"Can the fabric and the rails of the profile do SHARP"
LIBRARY = Check(
    "sharp.library",
    why="the plugin reduces in the switches by libsharp_coll.so; NCCL continues without it, and reports that only in"
    " its log",
    fix="install HPC-X or DOCA's sharp package; where it lies elsewhere, name its directory in sharp_directories",
)
"Is libsharp_coll.so there (Debian's `libsharp0` is spherical harmonics)"
PLUGIN = Check(
    "sharp.plugin",
    why="NCCL itself has no SHARP: it takes ncclCollNetPlugin from a network plugin",
    fix="install nccl-rdma-sharp-plugins (HPC-X has it in nccl_rdma_sharp_plugin/lib) and put its directory into"
    " LD_LIBRARY_PATH of jobs; where it lies elsewhere, name the directory in sharp_directories",
)
"Is there a network plugin for NCCL that exports `ncclCollNetPlugin_v*`"
RELEASE = Check(
    "sharp.release",
    why="a plugin beside the library of another release fails to load, or fails in a job",
    fix="use both out of one HPC-X, and take the other's directory out of LD_LIBRARY_PATH",
)
"Are plugin and library of one release"
MANAGER = Check(
    "sharp.manager",
    why="without the aggregation manager (sharp_am) there are no trees, and every job falls back to rings",
    fix="on the node of the subnet manager: `systemctl status sharp_am`; with UFM: sharp_enabled in [sharp] of gv.cfg;"
    " and TCP port 6126 over IPoIB has to be open, unless smx_protocol=1",
)
"Does the aggregation manager respond, as far as a host can check"
VARIABLE = Check(
    "sharp.variable",
    why="NCCL uses SHARP only if variables enable it, and one variable disables it again",
    fix='nccl_conf_extra: {NCCL_COLLNET_ENABLE: "1"} in the inventory, then %s' % fix_command.run_tag("nccl_conf"),
    aspect="persisted",
)
"Do the real variables switch SHARP on, and does none switch it off"
FOLK = Check(
    "sharp.folk_variable",
    why="No release of NCCL has ever read %s, nor has the SHARP plugin: the line has no effect.",
    fix="remove the line",
    aspect="persisted",
)
"Is SHARP not enabled by a variable that NCCL does not read"
THRESHOLD = Check(
    "sharp.threshold",
    why="below its threshold a job does not use SHARP, and over one node there is nothing to reduce in a switch",
    fix="remove the line: the default of both thresholds is 2",
    aspect="persisted",
)
"Are there enough nodes for SHARP, by the thresholds that are set"


@dataclass(frozen=True)
class SharpWanted:
    """profile: for the site's fabric.   directories: where library and plugin lie; empty: the usual places.

    manager: HOST or HOST:PORT of sharp_am; "" not given.   nodes: most nodes of a job; 0 not given.
    """

    profile: Profile
    directories: Tuple[str, ...] = ()
    manager: str = ""
    nodes: int = 0


@dataclass(frozen=True)
class File:
    """A library or a plugin.

    needed: names by which it links to libsharp_coll.so.   version: the newest ncclCollNetPlugin_v*.
    """

    path: str
    version: str = ""
    needed: Tuple[str, ...] = ()

    @property
    def tree(self) -> str:
        """The HPC-X that it is of, ``hpcx-v2.21``; "" of none."""
        found = _TREE.search(self.path)
        return found.group(1) if found else ""


@dataclass(frozen=True)
class Given:
    """A variable in one place. value: None if it is not set, or not ``certain``: it depends on running the file.

    everybody: jobs of all users get it from there.
    """

    value: Optional[str]
    source: str
    everybody: bool = True
    certain: bool = True


@dataclass(frozen=True)
class SharpState:
    """State of a node. other: unrelated libraries of that name, a sentence; "" for none.

    strangers: network plugins without CollNet.   variables: name -> what some jobs get, the same for all or not.
    answered: the aggregation manager's port: "" it accepted a connection, else the error; None not tested.
    """

    libraries: Tuple[File, ...] = ()
    plugins: Tuple[File, ...] = ()
    strangers: Tuple[str, ...] = ()
    other: str = ""
    variables: Mapping[str, Tuple[Given, ...]] = field(default_factory=dict)
    answered: Optional[str] = None
    problems: Tuple[Problem, ...] = ()


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, want: SharpWanted, reach: Optional[Callable[[str, int], str]] = None) -> SharpState:
    """Read the state. reach: as ``reached``. Raises ParseError if want.manager is not an address."""
    problems: List[Problem] = []
    libraries: List[File] = []
    plugins: List[File] = []
    strangers: List[str] = []
    others: List[str] = []
    for folder in _folders(host, want.directories, problems):
        for name in attempt(partial(host.listdir_system, folder), folder, problems) or ():
            path = "%s/%s" % (folder, name)
            if name.startswith(_COLL) and os.path.isfile(host.system(path)):
                libraries.append(File(path))
            elif _PLUGIN.match(name) and os.path.isfile(host.system(path)):
                found = attempt(partial(_plugin, host, path), path, problems)
                if found is not None and found.version:
                    plugins.append(found)
                elif found is not None:
                    strangers.append(path)
            elif name.startswith("libsharp.so"):
                others.append(path)
    others += ["%s/%s" % (_DPKG, name) for name in _listed(host, problems) if _LISTS.match(name)]
    return SharpState(
        tuple(libraries),
        tuple(plugins),
        tuple(strangers),
        "%s is of libsharp0, spherical harmonics, and no SHARP" % others[0] if others else "",
        _variables(host, problems),
        None if not want.manager else (reach or reached)(*address(want.manager)),
        tuple(problems),
    )


def _folders(host: Host, given: Sequence[str], problems: List[Problem]) -> List[str]:
    """Each once, however many links lead there."""
    found: Dict[str, str] = {}
    for place in given or _PLACES:
        top, star, rest = place.partition("*")
        folders = [place]
        if star:
            above, begin = top.rsplit("/", 1)
            names = attempt(partial(host.listdir_system, above), above, problems) or ()
            folders = ["%s/%s%s" % (above, name, rest) for name in names if name.startswith(begin)]
        for folder in folders:
            full = host.system(folder)
            if os.path.isdir(full):
                found.setdefault(os.path.realpath(full), folder)
    return list(found.values())


def _listed(host: Host, problems: List[Problem]) -> Sequence[str]:
    return attempt(partial(host.listdir_system, _DPKG), _DPKG, problems) or ()


def _plugin(host: Host, path: str) -> File:
    """A network plugin; without a version where it exports no CollNet. Raises ReadError."""
    full = host.system(path)
    try:
        versions = [name.decode("ascii") for name in _SYMBOL.findall(nccl_library.section(full, ".dynstr"))]
        needed = tuple(name for name in programs.needed_libraries(full) if name.startswith(_COLL))
    except ReadError as error:
        raise ReadError(path, error.problem.message) from error
    return File(path, max(versions, default="", key=lambda name: int(name.rpartition("v")[2])), needed)


def _variables(host: Host, problems: List[Problem]) -> Dict[str, Tuple[Given, ...]]:
    """Return variables. The environment of all jobs precedes nccl.conf; a user's setting affects only that user."""
    found: Dict[str, List[Given]] = {}
    for one in environment.read(host).settings:
        if not one.idle and one.name == one.variable:
            certain = one.value is not None and not one.conditional
            source = "%s:%d" % (one.source, one.line)
            given = Given(one.value if certain else None, source, one.reach in _EVERYBODY, certain)
            found.setdefault(one.variable, []).append(given)
    text = attempt(partial(host.read_system, CONF), CONF, problems)
    for pair in environment_sources.parse_nccl_conf(text or ""):
        before = found.setdefault(pair.name, [])
        if not any(one.everybody and one.certain for one in before):
            before.append(Given(pair.value, "%s:%d" % (CONF, pair.line)))
    return {name: tuple(each) for name, each in found.items()}


def address(text: str) -> Tuple[str, int]:
    """``HOST`` or ``HOST:PORT``. Raises ParseError."""
    match = re.match(r"^(?:\[([0-9a-fA-F:.]{2,45})\]|([A-Za-z0-9][\w.-]{0,252}))(?::(\d{1,5}))?$", text.strip())
    port = int(match.group(3) or PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ParseError("sharp_manager is %r, expected HOST, HOST:PORT or [ADDRESS]:PORT" % text[:80])
    return match.group(1) or match.group(2), port


def reached(host: str, port: int) -> str:
    """Return why a port accepts no connection, "" if it does. It is closed immediately, and nothing is sent."""
    try:
        socket.create_connection((host, port), ANSWER).close()
    except socket.gaierror as error:
        return "the name is not known here (%s)" % error.strerror
    except OSError as error:
        timed = isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT
        return "no response within %g s" % ANSWER if timed else str(error.strerror or error)
    return ""


# -- what is made of it ----------------------------------------------------------------------------------------------


def impossible(profile: Profile) -> Optional[Finding]:
    """Return why there is no SHARP on these rails, whatever a node has; None if it is possible."""
    layers = {layer for rail in profile.rails for layer in rail.link_layers}
    slow = [rail for rail in profile.rails if rail.rate_gbps < SLOWEST]
    want = "InfiniBand rails of %g Gbit/s and more" % SLOWEST
    if "InfiniBand" not in layers or "Ethernet" in layers:
        have = "Ethernet: RoCE switches do not reduce" if layers else "the profile has no rails"
    elif slow:
        have = "%s of %g Gbit/s" % (slow[0].label, slow[0].rate_gbps)
    else:
        return None
    return FABRIC.judge("profile %s" % profile.name, "unsupported", want, have, "the profile")


def plan(have: SharpState, want: SharpWanted) -> Plan:
    """Changes nothing: what is not ok is mended by packages, by role nccl_conf, or in the fabric."""
    ok = FABRIC.judge("profile %s" % want.profile.name, "ok", have="InfiniBand", source="the profile")
    return Plan(
        (
            ok,
            _library(have),
            _of_plugin(have),
            *_release(have),
            _manager(have, want),
            *_switches(have),
            *_folk(have),
            *_threshold(have, want),
        )
    )


def _library(have: SharpState) -> Finding:
    if have.libraries:
        return LIBRARY.judge(_COLL, "ok", "a library", have.libraries[0].path, have.libraries[0].path)
    problem = next((one for one in have.problems if "sharp" in one.source), None)
    if problem is not None:
        return LIBRARY.judge(_COLL, "unknown", "a library", str(problem), problem.source)
    return LIBRARY.judge(
        _COLL, "drift", "a library", have.other or "not found", "the usual places and sharp_directories"
    )


def _of_plugin(have: SharpState) -> Finding:
    subject = "libnccl-net.so"
    if have.plugins:
        one = have.plugins[0]
        return PLUGIN.judge(subject, "ok", "ncclCollNetPlugin", "%s in %s" % (one.version, one.path), one.path)
    problem = next((one for one in have.problems if "libnccl-net" in one.source), None)
    if problem is not None:
        return PLUGIN.judge(subject, "unknown", "ncclCollNetPlugin", str(problem), problem.source)
    said = "not found"
    if have.strangers:
        said = "%s does not export it: it is another plugin" % have.strangers[0]
    return PLUGIN.judge(subject, "drift", "ncclCollNetPlugin", said, "the usual places and sharp_directories")


def _release(have: SharpState) -> List[Finding]:
    """Nothing where one of both is missing, which is a finding already."""
    if not have.libraries or not have.plugins:
        return []
    names = {os.path.basename(one.path) for one in have.libraries}
    said: List[Tuple[str, str, str]] = []
    for plugin in have.plugins:
        if not plugin.needed:
            have_text = "%s is not linked with %s, so which one it loads is unknown" % (plugin.path, _COLL)
            said.append(("unknown", have_text, plugin.path))
            continue
        if plugin.needed[0] not in names:
            have_text = "%s needs %s, there is %s" % (plugin.path, plugin.needed[0], ", ".join(sorted(names)))
            said.append(("drift", have_text, plugin.path))
            continue
        fitting = [one for one in have.libraries if os.path.basename(one.path) == plugin.needed[0]]
        if plugin.tree and plugin.tree not in {one.tree for one in fitting}:
            have_text = "the plugin of %s, the library %s" % (plugin.tree, fitting[0].path)
            said.append(("drift", have_text, plugin.path))
            continue
        said.append(("ok", "%s and %s" % (plugin.path, plugin.needed[0]), plugin.path))
    # LD_LIBRARY_PATH decides which one a job takes: one matching pair is enough.
    state, text, source = min(said, key=lambda one: ("ok", "unknown", "drift").index(one[0]))
    return [RELEASE.judge("%s and libnccl-net.so" % _COLL, state, "one release", text, source)]


def _manager(have: SharpState, want: SharpWanted) -> Finding:
    subject, wanted = want.manager or "sharp_am", "an aggregation manager that responds"
    if have.answered is None:
        text = "a host cannot find it: sharp_manager is empty"
        fix = "set sharp_manager to its address, HOST:6126 over IPoIB; or let a job prove it (%s)" % _DOCS
        return MANAGER.judge(subject, "unknown", wanted, text, "sharp_manager", fix)
    if have.answered:
        return MANAGER.judge(subject, "drift", wanted, have.answered, "TCP to %s" % want.manager)
    return MANAGER.judge(subject, "ok", wanted, "takes TCP connections", "TCP to %s" % want.manager)


def _given(have: SharpState, name: str) -> Tuple[Given, ...]:
    """Return the variable's places; unset for jobs without any."""
    found = have.variables.get(name, ())
    return found if any(one.everybody and one.certain for one in found) else (*found, Given(None, CONF))


def _switches(have: SharpState) -> List[Finding]:
    return [
        _switch(
            have,
            *("NCCL_COLLNET_ENABLE", "1"),
            lambda value: value is not None and grammar.strtoll(value)[0] == 1,
        ),
        # The plugin compares with the text.
        _switch(have, "NCCL_SHARP_DISABLE", "not 1", lambda value: value != "1"),
        _switch(have, "NCCL_ALGO", "not set, or with CollNet", lambda value: value is None or with_collnet(value)),
    ]


def _switch(have: SharpState, name: str, wanted: str, fits: Callable[[Optional[str]], bool]) -> Finding:
    """The worst of what any job gets."""
    unread = next((one for one in have.problems if one.source == CONF), None)
    each = _given(have, name)
    wrong = next((one for one in each if one.certain and not fits(one.value)), None)
    if unread is not None and (wrong is None or wrong.value is None):
        return VARIABLE.judge(name, "unknown", wanted, str(unread), CONF, "read it on the host and repair it")
    if wrong is not None and wrong.value is not None:
        text = "%s=%s" % (name, wrong.value[:100])
        fix = (
            None if (name, wrong.source[: len(CONF)]) == ("NCCL_COLLNET_ENABLE", CONF) else _removed(name, wrong.source)
        )
        return VARIABLE.judge(name, "drift", wanted, text, wrong.source, fix)
    unclear = next((one for one in each if not one.certain), None)
    if unclear is not None:
        text = "set under a condition, or in a form that only running it would resolve"
        fix = "look at %s" % printable(unclear.source)
        return VARIABLE.judge(name, "unknown", wanted, text, unclear.source, fix)
    if wrong is not None:
        return VARIABLE.judge(name, "drift", wanted, "not set for all jobs", CONF)
    text = "%s=%s" % (name, each[0].value[:100]) if each[0].value is not None else "not set"
    return VARIABLE.judge(name, "ok", wanted, text, each[0].source)


def with_collnet(value: str) -> bool:
    """Return whether a value of NCCL_ALGO leaves CollNet to all-reduce."""
    lists = dict(part.rpartition(":")[::2] for part in value.lower().split(";") if part)
    listed = lists.get("allreduce", lists.get("", "^"))
    named = bool(_ALGORITHMS & set(listed.lstrip("^").split(",")))
    return not named if listed.startswith("^") else named


def _removed(name: str, source: str) -> str:
    """Return the fix that removes a line for good: the role renders nccl.conf from the inventory."""
    if source.startswith(CONF):
        return "take %s out of nccl_conf_extra if it is there, then %s" % (name, fix_command.run_tag("nccl_conf"))
    return "remove it from %s" % printable(source)


def _folk(have: SharpState) -> List[Finding]:
    found = []
    for name, each in sorted(have.variables.items()):
        if name in NEVER and "SHARP" in name:
            one = each[0]
            fix = "%s. %s" % (_removed(name, one.source), NEVER[name])
            text = "%s=%s" % (name, "..." if one.value is None else one.value[:80])
            found.append(FOLK.judge(name, "drift", "not set", text, one.source, fix, why=FOLK.why % name))
    return found or [
        FOLK.judge("NCCL's variables", "ok", "no such name", "none", CONF, why="names that NCCL does not read")
    ]


def _threshold(have: SharpState, want: SharpWanted) -> List[Finding]:
    if 0 < want.nodes < NODES:
        text = "%d" % want.nodes
        fix = "take busbar_sharp out: it needs two nodes"
        return [THRESHOLD.judge("nodes", "unsupported", "%d nodes at least" % NODES, text, "the inventory", fix)]
    found = []
    wanted = "no more than the %d nodes there are" % want.nodes if want.nodes else "a number"
    for name, what in _THRESHOLDS.items():
        said = []
        for one in _given(have, name):
            if not one.certain:
                said.append(("unknown", "%s=..." % name, one.source))
                continue
            value, source = (str(NODES), "NCCL's default") if one.value is None else (one.value, one.source)
            state = "drift" if want.nodes and grammar.strtoll(value)[0] > want.nodes else "ok"
            said.append((state, "%s=%s %s" % (name, value[:40], what), source))
        state, text, source = max(said, key=lambda one: ("ok", "unknown", "drift").index(one[0]))
        fix = None if state == "ok" else "%s: the default of both thresholds is %d" % (_removed(name, source), NODES)
        found.append(THRESHOLD.judge(name, state, wanted, text, source, fix))
    return found
