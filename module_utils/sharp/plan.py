# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge whether NCCL can use SHARP, reduction in the switches of an InfiniBand fabric, on a node.

Only NCCL's log proves that SHARP was used (diagnose/transport.py). Not tested on a fabric with SHARP:
docs/fabric.md#sharp lists what was never seen.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Tuple

from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.plan import Plan
from ..machine.profile import Profile
from ..nccl_conf import grammar
from ..nccl_conf.environment import Setting
from .read import COLL, CONF, File, SharpState, SharpWanted, is_certain, reaches_all

# Gbit/s of HDR: Quantum switches of this generation on reduce large messages.
SLOWEST = 200.0
# NCCL_COLLNET_NODE_THRESHOLD and the plugin's NCCL_SHARP_GROUP_SIZE_THRESH, by default.
NODES = 2
_THRESHOLDS = {
    "NCCL_COLLNET_NODE_THRESHOLD": "nodes of a communicator",
    "NCCL_SHARP_GROUP_SIZE_THRESH": "ranks of one rail",
}
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
    why="the plugin reduces in the switches by libsharp_coll.so; without it NCCL goes on, and only logs that",
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
THRESHOLD = Check(
    "sharp.threshold",
    why="below its threshold a job does not use SHARP, and over one node there is nothing to reduce in a switch",
    fix="remove the line: the default of both thresholds is 2",
    aspect="persisted",
)
"Are there enough nodes for SHARP, by the thresholds that are set"


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
    library = have.libraries[0] if have.libraries else ""
    plugin = next((one for one in have.plugins if one.version), File(""))
    version = "%s in %s" % (plugin.version, plugin.path)
    no_plugin = "%s does not export it: it is another plugin" % have.plugins[0].path if have.plugins else "not found"
    return Plan(
        (
            FABRIC.judge("profile %s" % want.profile.name, "ok", have="InfiniBand", source="the profile"),
            _file(have, LIBRARY, COLL, "a library", library, library, "not found"),
            _file(have, PLUGIN, "libnccl-net.so", "ncclCollNetPlugin", plugin.path, version, no_plugin),
            _manager(have, want),
            *_variables(have, want),
        )
    )


def _file(have: SharpState, check: Check, subject: str, want: str, path: str, text: str, missing: str) -> Finding:
    """Judge whether a library or plugin was found. path: of it, "" for none; text: about it; missing: about none."""
    if path:
        return check.judge(subject, "ok", want, text, path)
    word = "sharp" if check is LIBRARY else "libnccl-net"
    for problem in have.problems:
        if word in problem.source:
            return check.judge(subject, "unknown", want, str(problem), problem.source)
    return check.judge(subject, "drift", want, missing, "the usual places and sharp_directories")


def _manager(have: SharpState, want: SharpWanted) -> Finding:
    subject, wanted = want.manager or "sharp_am", "an aggregation manager that responds"
    if have.answered is None:
        text = "a host cannot find it: sharp_manager is empty"
        fix = "set sharp_manager to its address, HOST:6126 over IPoIB; or let a job prove it (%s)" % _DOCS
        return MANAGER.judge(subject, "unknown", wanted, text, "sharp_manager", fix)
    state, text = ("drift", have.answered) if have.answered else ("ok", "takes TCP connections")
    return MANAGER.judge(subject, state, wanted, text, "TCP to %s" % want.manager)


def _variables(have: SharpState, want: SharpWanted) -> List[Finding]:
    """Judge each variable of NCCL and of the plugin: the worst of what any job gets."""
    most = want.nodes or 1 << 31
    found = [_variable(have, VARIABLE, name, *row) for name, row in _SWITCHES.items()]
    if 0 < want.nodes < NODES:
        fix, text = "take busbar_sharp out: it needs two nodes", "%d nodes at least" % NODES
        return [*found, THRESHOLD.judge("nodes", "unsupported", text, "%d" % want.nodes, "the inventory", fix)]
    for name, what in _THRESHOLDS.items():
        wanted = "no more than %d %s" % (want.nodes, what) if want.nodes else "a number of %s" % what
        fits = lambda value: grammar.strtoll(value or str(NODES))[0] <= most  # noqa: E731
        found.append(_variable(have, THRESHOLD, name, wanted, fits))
    return found


# Variable -> its value in words, and whether a value fits.
_SWITCHES: Dict[str, Tuple[str, Callable[[Optional[str]], bool]]] = {
    "NCCL_COLLNET_ENABLE": ("1", lambda value: value is not None and grammar.strtoll(value)[0] == 1),
    # The plugin compares with the text.
    "NCCL_SHARP_DISABLE": ("not 1", lambda value: value != "1"),
    "NCCL_ALGO": ("not set, or with CollNet", lambda value: value is None or with_collnet(value)),
}


def _variable(have: SharpState, check: Check, name: str, wanted: str, fits: Callable[[Optional[str]], bool]) -> Finding:
    places = have.variables.get(name, [])
    certain = [one for one in places if is_certain(one)]
    wrong = next((one for one in certain if not fits(one.value)), None)
    unread = next((one for one in have.problems if one.source == CONF), None)
    unclear = next((one for one in places if not is_certain(one)), None)
    if wrong is not None:
        by_role = name == "NCCL_COLLNET_ENABLE" and wrong.source == CONF
        more = ": the default of both thresholds is %d" % NODES if check is THRESHOLD else ""
        fix = None if by_role else _removed(name, wrong) + more
        return check.judge(name, "drift", wanted, _assignment(wrong), wrong.place, fix)
    if unread is not None:
        return check.judge(name, "unknown", wanted, str(unread), CONF, "read it on the host and repair it")
    if unclear is not None:
        text = "set under a condition, or in a form that only running it would resolve"
        return check.judge(name, "unknown", wanted, text, unclear.place, "look at %s" % printable(unclear.place))
    if not any(map(reaches_all, certain)) and not fits(None):
        return check.judge(name, "drift", wanted, "not set for all jobs", CONF)
    shown, place = (_assignment(certain[0]), certain[0].place) if certain else ("not set", CONF)
    return check.judge(name, "ok", wanted, shown, place)


def _assignment(one: Setting) -> str:
    return "%s=%s" % (one.name, (one.value or "")[:100])


def with_collnet(value: str) -> bool:
    """Return whether a value of NCCL_ALGO leaves CollNet to all-reduce."""
    lists = dict(part.rpartition(":")[::2] for part in value.lower().split(";") if part)
    listed = lists.get("allreduce", lists.get("", "^"))
    named = bool(_ALGORITHMS & set(listed.lstrip("^").split(",")))
    return not named if listed.startswith("^") else named


def _removed(name: str, one: Setting) -> str:
    """Return the fix that removes a line for good: the role renders nccl.conf from the inventory."""
    if one.source == CONF:
        return "take %s out of nccl_conf_extra if it is there, then %s" % (name, fix_command.run_tag("nccl_conf"))
    return "remove it from %s" % printable(one.place)
