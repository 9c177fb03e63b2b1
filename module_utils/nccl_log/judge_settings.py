# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log says about the variables of a job: values, what came of them, and what they keep NCCL from."""

from __future__ import annotations

from dataclasses import replace
from typing import List

from ..core.check import Check
from ..core.finding import Finding
from ..nccl.grammar import strtoll
from ..nccl.lint import lint_variable
from . import collnet, net_plugins
from .jobs import Job, hosts_of, names

EFFECT = Check(
    "nccl_log.variable_effect",
    why="a variable was set without effect: NCCL does not report that",
    fix="remove the variable, or provide what it needs",
    severity="minor",
)
"Did the variables take effect"
SAME = Check(
    "nccl_log.same_settings",
    why="ranks with different settings may choose different algorithms: the job then hangs, fails, or is slow",
    fix="set it for all ranks alike, or nowhere: /etc/nccl.conf by site.yml with --tags nccl_conf",
)
"Have all ranks the same settings"

# Of these a difference between ranks is a fault; others are a node's own, such as its interface's name.
_ALIKE = {
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE"),
    *("NCCL_CROSS_NIC", "NCCL_PXN_DISABLE", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_QPS_PER_CONNECTION"),
    *("NCCL_P2P_NET_CHUNKSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NET_GDR_LEVEL", "NCCL_IB_TC"),
    *("NCCL_IB_SL", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
}

# judge_network says what came of these.
_JUDGED = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")

_SLINGSHOT = "; NCCL goes by TCP over Slingshot's interfaces (hsn...) instead of libfabric: slow between nodes"


def judge(job: Job) -> List[Finding]:
    return _variables(job) + _effects(job) + _same(job)


def _variables(job: Job) -> List[Finding]:
    """What the linter says of values."""
    found = []
    # Nothing to reduce in the NVSwitches.
    alone = bool(job.communicators) and max(one.local_ranks for one in job.communicators) == 1
    for name in sorted({name for process in job.processes for name in process.variables}):
        if not name.startswith("NCCL_") or name in _JUDGED or (name == "NCCL_NVLS_ENABLE" and alone):
            continue
        for value in sorted(job.set_to(name))[:3]:
            faults = lint_variable(name, value, job.name, version=job.version, place="job")
            # NCCL prints what it reads.
            faults = [
                finding for finding in faults if not finding.check.endswith(("unknown_variable", "dead_variable"))
            ]
            faults = [finding for finding in faults if finding.severity != "minor"][:1]
            if name == "NCCL_IB_HCA" and _all_named(job, value):
                continue
            if name == "NCCL_NVLS_ENABLE" and job.world is not None and job.nodes == job.world.ranks:
                continue  # with one GPU a node there is nothing to reduce within it
            # Advice on speed is no failure; of names that fit nothing it does not matter how they would fit.
            idle = name == "NCCL_IB_HCA" and not any(one.hcas for one in job.processes)
            found += [replace(one, severity="minor") if idle or one.check.endswith("advice") else one for one in faults]
    return found


def _all_named(job: Job, value: str) -> bool:
    """Whether each HCA that NCCL uses is named in full: that a name is the begin of others then does not matter."""
    named = {part.partition(":")[0] for part in value.lstrip("=^").split(",")}
    seen = {part for one in job.processes for device in one.devices.values() for part in device.name.split("+")}
    return bool(seen) and seen <= named


def _effects(job: Job) -> List[Finding]:
    found = []

    def say(name: str, have: str, fix: str = "", severity: str = "minor") -> None:
        values = names(job.set_to(name))
        text = "%s=%s: %s" % (name, values, have)
        found.append(EFFECT.judge("%s %s" % (job.name, name), "drift", None, text, "", fix or None, severity=severity))

    plugins = {plugin for process in job.processes for plugin in process.plugins}
    for kind, name in (
        ("NET", "NCCL_NET_PLUGIN"),
        ("TUNER", "NCCL_TUNER_PLUGIN"),
        ("PROFILER", "NCCL_PROFILER_PLUGIN"),
    ):
        wanted = [value for value in job.set_to(name) if value.lower() not in ("", "none", "internal")]
        states = {plugin.state for plugin in plugins if plugin.kind == kind and plugin.name not in ("IB", "Socket")}
        if kind == "NET" and wanted and "idle" in states:
            have = "the plugin found no device that it takes (No eligible providers), so it is not used"
            say(name, have, net_plugins.look_after_idle(job.processes), "major")
        elif wanted and not states & {"loaded"} and states & {"missing", "failed"}:
            fix = "put the plugin's directory into LD_LIBRARY_PATH, or take %s out" % name
            if kind == "NET" and "missing" not in states:
                say(
                    name,
                    "the plugin is there and did not start",
                    "see the lines of NET/ before it, or take it out",
                    "major",
                )
            elif kind == "NET":
                slingshot = net_plugins.slingshot(job.processes)
                have = "no such plugin was loaded" + (_SLINGSHOT if slingshot and "Socket" in job.networks else "")
                say(name, have, fix, "major")
            else:
                have = "no line says that it was loaded; without it NCCL's own is used, which is not a failure (`Failed"
                say(
                    name,
                    have + " to find nccl..._vN symbol` means that the library is there and lacks that interface)",
                    fix,
                )
    if job.number("NCCL_NVLS_ENABLE") == 1 and any(process.nvls is False for process in job.processes):
        say(
            "NCCL_NVLS_ENABLE",
            "NVLS multicast is not available on these GPUs",
            "`systemctl status nvidia-fabricmanager`",
        )
    sharp = collnet.proof(job)
    if job.number("NCCL_COLLNET_ENABLE") and not sharp.proven and any(process.rings for process in job.processes):
        fix = "let playbooks/sharp.yml list what the hosts lack (docs/fabric.md#sharp), or take the variable out"
        say("NCCL_COLLNET_ENABLE", sharp.missing, fix, "major")
    networks = job.networks
    if networks and "Socket" not in networks:
        for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"):
            if job.set_to(name):
                say(name, "it acts on NET/Socket, and %s is used" % names(networks))
    level = [value for value in job.set_to("NCCL_NET_GDR_LEVEL") if value not in ("LOC", "0")]
    able = {able for process in job.processes for able in process.gdr_devices.values()}
    if level and able == {False}:
        fix = "load nvidia_peermem, or use the open GPU kernel modules (DMA-BUF); then the variable is hardly needed"
        say("NCCL_NET_GDR_LEVEL", "no HCA can do GPUDirect RDMA, whatever the level", fix)
    disabled = job.number("NCCL_IB_DISABLE")
    if disabled and any(name.startswith("IBext") for name in networks):
        fix = "take it out, or set NCCL_IBEXT_DISABLE=1 if TCP is intended"
        say("NCCL_IB_DISABLE", "it does not stop %s, which is used" % names(networks), fix)
    return found


def _same(job: Job) -> List[Finding]:
    found = []
    for name in sorted(_ALIKE):
        values = job.set_to(name)
        if len({_meaning(value) for value in values}) > 1:
            have = "; ".join(
                "%s on %s" % (value, hosts_of(process.host for process in on))
                for value, on in sorted(values.items())[:4]
            )
            found.append(SAME.judge("%s %s" % (job.name, name), "drift", "one value", have, "set by environment"))
    return found


def _meaning(value: str) -> str:
    number, rest = strtoll(value)
    return value if rest else str(number)
