# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges one GPU by what nvidia-smi says of it, and by what its counters have grown since an earlier night.

An idle GPU's clocks, its power state and its PCIe speed are no findings, nor is persistence mode: each finding is a
state that no load explains, or growth, never a total. Sources: limits.py.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Tuple

from ..core.check import Check
from ..core.finding import Finding
from . import limits, nvlink, record, smi

RECHECK = "then run site.yml --tags node_health for this host again"
RESET = "drain the node and run nvidia-smi --gpu-reset -i {0} (without -i where it refuses: all at once), or reboot;"
REPLACE = "drain the node, keep nvidia-bug-report.sh's archive, and have the GPU replaced; busbar rma has its serial"
# Growth of a GPU's counters, and over how many seconds; ({}, 0) where nothing can be compared.
Growth = Tuple[Mapping[str, int], float]

GPU_ANSWERS = Check(
    "node_health.gpu_answers",
    why="a GPU that cannot be asked may be lost, and nothing is proven of what it does not say",
    fix="run nvidia-smi -q on the node; where a GPU is lost or wants a reset, drain the node and reboot it",
    severity="critical",
)
"Does nvidia-smi say of each GPU all that it should"
RECOVERY = Check(
    "node_health.recovery_action",
    why="the driver itself says that the GPU needs this before it works right again",
    severity="critical",
)
"Does the driver ask for no recovery of the GPU (reset, reboot, drain)"
ECC = Check(
    "node_health.ecc",
    why="an uncorrected memory error ends a program or falsifies it; corrected ones are normal, in these numbers not",
)
"Is ECC on, without uncorrected errors since the driver was loaded, and do corrected errors not pile up"
ROW_REMAP = Check(
    "node_health.row_remap",
    why="a defective memory row is replaced by a spare one at the next reset; where none is left the GPU has to go",
)
"Is no memory row waiting to be remapped, and were all that had to be"
REPAIR = Check(
    "node_health.memory_repair",
    why="the driver counts memory as beyond repair, or waits for a reset to repair it",
)
"Is no memory beyond repair, or waiting for a repair"
THROTTLE = Check(
    "node_health.throttle",
    why="one GPU whose clock is held down by heat or by its power supply holds up every rank of a job",
    fix="look at the node's fans, air intake, cooling loop and power supplies, and at the BMC's event log; compare with"
    " its neighbours in the rack; " + RECHECK,
)
"Is no GPU slowed by heat or the power brake, now or for long since the last night"
POWER_LIMIT = Check(
    "node_health.power_limit",
    why="a forgotten power cap slows the GPU under load, and shows nowhere else",
    severity="major",
)
"Is each GPU's power limit its default, or `node_health_power_limit`"
CLOCKS = Check(
    "node_health.application_clocks",
    why="application clocks below the default were set by somebody, and hold under any load",
    severity="minor",
)
"Are each GPU's application clocks not below their default"
TEMPERATURE = Check(
    "node_health.temperature",
    why="at this temperature the GPU slows down by itself",
    fix="look at the node's fans, air intake and cooling loop, and at the BMC's event log; " + RECHECK,
)
"Is each GPU cooler than where it slows down"
MIG = Check(
    "node_health.mig",
    why="NCCL has no peer access between GPUs of which one is split into MIG instances",
    severity="critical",
)
"Is MIG off on each GPU, now and after the next reset"
CONFIDENTIAL = Check(
    "node_health.confidential_computing",
    why="under confidential computing transfers between GPUs and to the NIC go through encrypted bounce buffers",
    fix="switch it off on the host (nvtrust: gpu-admin-tools --set-cc-mode=off --reset-after-cc-mode-switch), or take"
    " the node out of the group of those that are held to these bars",
)
"Is confidential computing off"
PCIE_REPLAY = Check(
    "node_health.pcie_replay",
    why="each replay sends a PCIe packet again; this many mean a bad slot, riser or retimer",
    fix="reseat the GPU or its riser, look at AER errors in dmesg and at the BIOS's PCIe settings; " + RECHECK,
)
"Do PCIe replays of each GPU stay within what its link's error rate allows"
NVLINK_STATE = Check(
    "node_health.nvlink_state",
    why="one NVLink at a lower speed sets the pace of the whole board",
    severity="critical",
)
"Do all active NVLinks run at their full speed (how many there are is `platform.nvlinks`)"
NVLINK_ERRORS = Check(
    "node_health.nvlink_errors",
    why="a link that recovers again and again loses bandwidth now and the GPU within days",
)
"Have the errors and recoveries of no NVLink grown since the last night"

_REBOOT = "drain the node and reboot it;"
# What gpu_recovery_action may say, in lower case, beside "none": what to do.
_RECOVERY = {
    "reset": RESET,
    "gpu reset required": RESET,
    "node reboot required": _REBOOT,
    "reboot": _REBOOT,
    "drain p2p": "let the jobs of this GPU end and give it none that use peer access, then reset it:"
    " nvidia-smi --gpu-reset -i {0};",
    "drain and reset": RESET,
}


def judge(
    gpu: smi.Gpu,
    name: str,
    growth: Growth,
    power_limit: Optional[float],
    trouble: Optional[Finding],
    lost: Optional[Finding] = None,
) -> List[Finding]:
    """name: the subject.   power_limit: watts that the site asks for.   trouble: its Xid, that others follow from.

    lost: the Xid of a GPU that has fallen off the bus: the driver then asks all others for the node's reboot.
    """
    cause = trouble if trouble is not None and not trouble.ok else None
    reboots = _RECOVERY.get((gpu.recovery or "").lower()) == _REBOOT
    found = [_recovery(gpu, name, cause or (lost if reboots else None))]
    if not found[0].ok and found[0].because is None:
        cause = found[0]
    source = " ".join(smi.COMMAND)
    if gpu.lost:
        found.append(GPU_ANSWERS.judge(name, "unknown", "values", "; ".join(gpu.lost[:5]), source, because=cause))
    else:
        found.append(GPU_ANSWERS.judge(name, "ok", have="every value", source=source))
    ecc = _ecc(gpu, name, growth, cause)
    found += [ecc, _rows(gpu, name, cause or ecc), _repair(gpu, name, cause), _throttle(gpu, name, growth)]
    found += [_power(gpu, name, power_limit), _clocks(gpu, name), _temperature(gpu, name), _mig(gpu, name)]
    return [*found, _confidential(gpu, name), _replays(gpu, name, growth)]


def _recovery(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    said, element = gpu.recovery, "gpu_recovery_action"
    if said is None:
        # Drivers before 565.
        element = "gpu_reset_status"
        said = "Reset" if gpu.flags.get("reset_required") else "None"
        said = "Drain and Reset" if gpu.flags.get("drain_and_reset") else said
    word = said.lower()
    state, fix = "drift", ""
    if word == "none":
        state = "ok"
    elif word in _RECOVERY:
        fix = "%s %s" % (_RECOVERY[word].format(gpu.pci), RECHECK)
    else:
        state = "unknown"
        fix = "look up what the driver means by it (nvidia-smi -q -i %s, GPU Recovery Action) and do that; %s" % (
            gpu.pci,
            RECHECK,
        )
    return RECOVERY.judge(name, state, "None", said, "%s, %s" % (" ".join(smi.COMMAND), element), fix, cause)


def _ecc(gpu: smi.Gpu, name: str, growth: Growth, cause: Optional[Finding]) -> Finding:
    (grown, seconds), source = growth, "%s, ecc_mode and ecc_errors" % " ".join(smi.COMMAND)
    lost = {kind: n for kind, n in gpu.volatile.items() if "uncorrectable" in kind and n}
    if lost:
        text = "%s since the driver was loaded" % counts(lost)
        fix = "%s %s" % (RESET.format(gpu.pci), RECHECK)
        return ECC.judge(name, "drift", "no uncorrected errors", text, source, fix, cause)
    if gpu.ecc is False or gpu.ecc_pending is False:
        text = "off" if gpu.ecc is False else "off after the next reset"
        if gpu.ecc is False and gpu.ecc_pending:
            text = "off, on after the next reset"
        fix = "drain the node, nvidia-smi -i %s -e 1, then reset the GPU or reboot; %s" % (gpu.pci, RECHECK)
        return ECC.judge(name, "drift", "on", text, source, fix)
    days = max(seconds, limits.DAY) / limits.DAY
    many = {
        kind: grown["ecc " + kind]
        for kind, most in limits.CORRECTED.items()
        if grown.get("ecc " + kind, 0) > most * days
    }
    if many:
        fix = "run dcgmi diag -r 3 on the drained node; where it fails, or they go on, have the GPU replaced"
        return ECC.judge(name, "drift", "few corrected errors", counts(many) + within(seconds), source, fix)
    return ECC.judge(name, "ok", have="on" if gpu.ecc else "no uncorrected errors", source=source)


def _rows(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    source = "%s, remapped_rows" % " ".join(smi.COMMAND)
    if gpu.flags.get("row_failure"):
        return ROW_REMAP.judge(
            name, "drift", "no failure", "a row could not be remapped", source, REPLACE, severity="critical"
        )
    if gpu.rows is not None and gpu.rows >= limits.ROWS:
        text = "%d rows are remapped for uncorrectable errors" % gpu.rows
        return ROW_REMAP.judge(name, "drift", "fewer than %d" % limits.ROWS, text, source, REPLACE, severity="critical")
    if gpu.flags.get("row_pending") or gpu.flags.get("retirement_pending"):
        fix = "jobs that run may go on: reset the GPU when the node is idle, nvidia-smi --gpu-reset -i %s; %s" % (
            gpu.pci,
            RECHECK,
        )
        return ROW_REMAP.judge(
            name, "drift", "none pending", "a row waits to be remapped", source, fix, cause, severity="minor"
        )
    return ROW_REMAP.judge(name, "ok", have="%d rows remapped" % (gpu.rows or 0), source=source)


def _repair(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    source = "%s, ecc_errors" % " ".join(smi.COMMAND)
    if gpu.flags.get("unrepairable") or gpu.flags.get("sram_threshold"):
        text = "unrepairable memory" if gpu.flags.get("unrepairable") else "too many SRAM errors (threshold exceeded)"
        return REPAIR.judge(name, "drift", "none", text, source, REPLACE, severity="critical")
    waiting = [word for word in ("channel", "tpc") if gpu.flags.get(word + "_pending")]
    if waiting:
        fix = "reset the GPU when the node is idle, nvidia-smi --gpu-reset -i %s; %s" % (gpu.pci, RECHECK)
        text = "repair of %s waits for a reset" % " and ".join(waiting)
        return REPAIR.judge(name, "drift", "none pending", text, source, fix, cause, severity="minor")
    return REPAIR.judge(name, "ok", have="none pending", source=source)


def _throttle(gpu: smi.Gpu, name: str, growth: Growth) -> Finding:
    (grown, seconds), source = growth, "%s, clocks_event_reasons" % " ".join(smi.COMMAND)
    if gpu.reasons:
        text = "slowed now: %s" % ", ".join(sorted(gpu.reasons))
        return THROTTLE.judge(name, "drift", "not slowed", text, source)
    slowed = []
    for reason, share in limits.SLOWED.items():
        held = grown.get("slowed " + reason, 0) / 1e6
        if seconds >= record.SHORTEST and held > share * seconds:
            slowed.append("%s for %.0f min" % (reason, held / 60))
    if slowed:
        return THROTTLE.judge(name, "drift", "not slowed", ", ".join(slowed) + within(seconds), source + "_counters")
    return THROTTLE.judge(name, "ok", have="not slowed", source=source)


def _power(gpu: smi.Gpu, name: str, asked: Optional[float]) -> Finding:
    source = "%s, gpu_power_readings" % " ".join(smi.COMMAND)
    limit, want = gpu.power_limit, asked or gpu.power_default
    if limit is None or want is None or abs(limit - want) < 1:
        return POWER_LIMIT.judge(name, "ok", have="%g W" % limit if limit else "no limit", source=source)
    fix = "nvidia-smi -i %s -pl %g; look for what set it at boot (a unit, a script, the BMC)" % (gpu.pci, want)
    if asked is None:
        fix += ", or set node_health_power_limit where the site means it"
    return POWER_LIMIT.judge(name, "drift", "%g W" % want, "%g W" % limit, source, fix + "; " + RECHECK)


def _clocks(gpu: smi.Gpu, name: str) -> Finding:
    source = "%s, applications_clocks" % " ".join(smi.COMMAND)
    if gpu.clock is None or gpu.clock_default is None or gpu.clock >= gpu.clock_default:
        return CLOCKS.judge(name, "ok", have="%g MHz" % gpu.clock if gpu.clock else "no limit", source=source)
    fix = "nvidia-smi -i %s -rac; %s" % (gpu.pci, RECHECK)
    return CLOCKS.judge(name, "drift", "%g MHz" % gpu.clock_default, "%g MHz" % gpu.clock, source, fix)


def _temperature(gpu: smi.Gpu, name: str) -> Finding:
    source = "%s, temperature" % " ".join(smi.COMMAND)
    if gpu.margin is not None and gpu.margin[0] <= gpu.margin[1]:
        want, text = "T.Limit above %g C" % gpu.margin[1], "%g C" % gpu.margin[0]
        return TEMPERATURE.judge(name, "drift", want, text, source)
    if gpu.temperature is not None and gpu.temperature[0] >= gpu.temperature[1]:
        want, text = "below %g C" % gpu.temperature[1], "%g C" % gpu.temperature[0]
        return TEMPERATURE.judge(name, "drift", want, text, source)
    return TEMPERATURE.judge(name, "ok", have="%g C" % (gpu.temperature or gpu.margin or (0.0,))[0], source=source)


def _mig(gpu: smi.Gpu, name: str) -> Finding:
    source = "%s, mig_mode" % " ".join(smi.COMMAND)
    if not gpu.mig and not gpu.mig_pending:
        return MIG.judge(name, "ok", have="off", source=source)
    text = "on" if gpu.mig else "on after the next reset"
    if gpu.mig and gpu.mig_pending is False:
        text = "on, off after the next reset"
    fix = "drain the node, nvidia-smi -i %s -mig 0, then reset the GPU; %s" % (gpu.pci, RECHECK)
    return MIG.judge(name, "drift", "off", text, source, fix)


def _confidential(gpu: smi.Gpu, name: str) -> Finding:
    source = "%s, cc_protected_memory_usage" % " ".join(smi.COMMAND)
    if not gpu.protected_mib:
        return CONFIDENTIAL.judge(name, "ok", have="off", source=source)
    return CONFIDENTIAL.judge(name, "drift", "off", "%d MiB are protected" % gpu.protected_mib, source)


def _replays(gpu: smi.Gpu, name: str, growth: Growth) -> Finding:
    source, (grown, seconds) = "%s, replay_counter" % " ".join(smi.COMMAND), growth
    n = grown.get("replays", 0)
    # Of a generation that is not known, what the fastest may.
    most = limits.REPLAYS.get(gpu.gen or 0, max(limits.REPLAYS.values())) * (gpu.width or 16) / 16.0
    if seconds < record.SHORTEST or n <= most * seconds / 60:
        return PCIE_REPLAY.judge(name, "ok", have="+%d" % n, source=source)
    text = "%d%s, %.0f a minute" % (n, within(seconds), n * 60 / seconds)
    return PCIE_REPLAY.judge(name, "drift", "%g a minute at most" % most, text, source)


# -- NVLinks ---------------------------------------------------------------------------------------------------------


def speeds(gpu: smi.Gpu, name: str, links: Mapping[int, Optional[float]], fastest: float) -> Finding:
    """links: GB/s of each.   fastest: of all links of the node, which are of one kind."""
    least = max(limits.NVLINK_GBPS.get(gpu.architecture or "", 0), fastest * 0.99)
    slow = {link: speed for link, speed in links.items() if speed is not None and speed < least}
    command = " ".join(nvlink.STATUS)
    if not slow:
        return NVLINK_STATE.judge(name, "ok", have="%d links" % len(links), source=command)
    text = ", ".join("link %d %g GB/s" % pair for pair in sorted(slow.items()))
    fix = "%s %s" % (RESET.format(gpu.pci), RECHECK)
    return NVLINK_STATE.judge(name, "drift", "%g GB/s or more" % least, text, command, fix)


def link_errors(gpu: smi.Gpu, name: str, growth: Growth) -> Finding:
    command, (grown, seconds) = " ".join(nvlink.ERRORS), growth
    links = {key: n for key, n in grown.items() if key.startswith("link ") and n and seconds >= record.SHORTEST}
    if not links:
        return NVLINK_ERRORS.judge(name, "ok", have="no growth", source=command)
    recoveries = sum(n for key, n in links.items() if key.endswith("recoveries"))
    failed = any(key.endswith(("failed recoveries", "replays")) for key in links)
    rates = [n / seconds for key, n in links.items() if key.endswith(("CRC errors", "effective errors"))]
    bad = failed or recoveries >= limits.RECOVERIES or max(rates, default=0) >= limits.CRC_PER_SECOND
    worst = sorted(links.items(), key=lambda item: -item[1])
    text = ", ".join("%s +%d" % item for item in worst[:6]) + within(seconds)
    if len(worst) > 6:
        text += ", and %d more counters" % (len(worst) - 6)
    fix = "watch it: no more than this is no reason to act; the same link night after night is, then " + (
        RESET.format(gpu.pci)
    )
    if bad:
        fix = "%s where it comes again run dcgmi diag -r 3, and have the GPU or the board replaced;" % RESET.format(
            gpu.pci
        )
    return NVLINK_ERRORS.judge(
        name, "drift", "no growth", text, command, "%s %s" % (fix, RECHECK), severity="major" if bad else "minor"
    )


def counts(of: Mapping[str, int]) -> str:
    """``2 fatal, 3 nonfatal``."""
    return ", ".join("%d %s" % (n, name) for name, n in sorted(of.items()))


def within(seconds: float) -> str:
    """``in 24.0 h``, after a blank."""
    return " in %.1f h" % (seconds / 3600)
