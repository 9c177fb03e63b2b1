# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge one GPU by what nvidia-smi reports and by the growth of its counters since an earlier run.

An idle GPU's clocks, power state and PCIe speed are not findings, nor is persistence mode: each finding is a state that
no load explains, or growth, never a total. A check is ok only if every element that it needs has a value; what the GPU
cannot have is unsupported. Limits have their source; "own" is this suite's choice if no limit is published.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..core.check import Check
from ..core.finding import Finding
from . import record, smi
from .service import RECHECK

# One finding is printed for all GPUs that have it: its advice holds for each of them.
EACH = "with the address of each GPU of this finding as ADDRESS"
RESET = (
    "drain the node and run nvidia-smi --gpu-reset -i ADDRESS, %s (without -i where it refuses: all at once),"
    " or reboot;" % EACH
)
REPLACE = (
    "drain the node, store nvidia-bug-report.sh's archive, and have the GPU replaced; nvidia-smi -q -i ADDRESS, %s,"
    " prints its serial number for the vendor" % EACH
)
# Growth of a GPU's counters, and over how many seconds; ({}, 0) where nothing can be compared.
Growth = Tuple[Mapping[str, int], float]

GPU_ANSWERS = Check(
    "node_health.gpu_answers",
    why="a GPU whose values cannot be read may be lost, and nothing is proven of what was not read",
    fix="run nvidia-smi -q on the node; drain and reboot it, and if that does not help reinstall the driver; "
    + RECHECK,
    severity="critical",
)
"Does nvidia-smi report every value of each GPU that this GPU and its driver have"
RECOVERY = Check(
    "node_health.recovery_action",
    why="the driver reports that the GPU needs this before it works correctly again",
    severity="critical",
)
"Does the driver request no recovery of the GPU (reset, reboot, drain)"
ECC = Check(
    "node_health.ecc",
    why="an uncorrected memory error ends a program or corrupts its data; corrected ones are normal, but not so many",
)
"Is ECC on, without uncorrected errors since the driver was loaded and with few corrected ones"
ROW_REMAP = Check(
    "node_health.row_remap",
    why="a defective memory row is taken out of use at the next reset; without a spare, replace the GPU",
)
"Are remapped memory rows few, none pending and none failed (from Ampere on)"
REPAIR = Check(
    "node_health.memory_repair",
    why="the driver counts memory as beyond repair, or waits for a reset to repair it",
)
"Is all memory repaired, with no repair pending or failed"
THROTTLE = Check(
    "node_health.throttle",
    why="one GPU whose clock is held down by heat or by its power supply holds up every rank of a job",
    fix="check fans, air intake, cooling loop, power supplies and the BMC's event log; " + RECHECK,
)
"Does no GPU throttle by heat or power brake, now or for long since the previous run"
POWER_LIMIT = Check(
    "node_health.power_limit",
    why="a forgotten power cap slows the GPU under load, and no error reports it",
    severity="major",
)
"Is each GPU's power limit its default, or `node_health_power_limit`"
CLOCKS = Check(
    "node_health.application_clocks",
    why="application clocks were set below the default, and apply under any load",
    severity="minor",
)
"Are each GPU's application clocks not below their default"
TEMPERATURE = Check(
    "node_health.temperature",
    why="at this temperature the GPU throttles automatically",
    fix="check the node's fans, air intake and cooling loop, and the BMC's event log; " + RECHECK,
)
"Is each GPU cooler than its slowdown temperature"
MIG = Check(
    "node_health.mig",
    why="NCCL has no peer access between GPUs of which one is split into MIG instances",
    severity="critical",
)
"Is MIG off on each GPU, now and after the next reset"
CONFIDENTIAL = Check(
    "node_health.confidential_computing",
    why="under confidential computing transfers between GPUs and to the NIC go through encrypted bounce buffers",
    fix="switch it off on the host: nvidia_gpu_tools.py --devices gpus --set-cc-mode=off --reset-after-cc-mode-switch",
)
"Is confidential computing off"
PCIE_REPLAY = Check(
    "node_health.pcie_replay",
    why="each replay sends a PCIe packet again; this many mean a bad slot, riser or retimer",
    fix="reseat the GPU or its riser, look at AER errors in dmesg and at the BIOS's PCIe settings; " + RECHECK,
)
"Do PCIe replays of each GPU stay within what its link's error rate allows"

# Corrected ECC errors a day. AzNHC tolerates 20,000,000 of DRAM and 10,000 of SRAM in all; a day is own.
_CORRECTED = {"ecc dram_correctable": 20_000_000, "ecc sram_correctable": 10_000}
# Rows remapped for uncorrectable errors, at which DCGM fails a GPU.
_ROWS = 512
# Share of the time that a reason has held the clocks down. DCGM's watch of the power brake was raised on 69 % of 288
# healthy nodes (NVIDIA/NVSentinel#1666), most for moments; a real one lasted 36 hours. The share is own.
_SLOWED = {"hw_thermal_slowdown": 0.01, "hw_power_brake_slowdown": 0.01, "sw_thermal_slowdown": 0.05}
# PCIe replays a minute at 16 lanes by generation: what a bit error rate of 1e-12 allows (DCGM).
_REPLAYS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 31.0, 6: 62.0}
_WHEN_IDLE = "jobs that run may continue: when the node is idle run nvidia-smi --gpu-reset -i ADDRESS, %s; %s" % (
    EACH,
    RECHECK,
)
_DIAGNOSE = "run dcgmi diag -r 3 on the drained node; if that fails, or more follow, have the GPU replaced"
_REBOOT = "drain the node and reboot it;"
# Values of gpu_recovery_action in lower case, except "none" -> what to do.
_RECOVERY = {
    **dict.fromkeys(("reset", "gpu reset required", "drain and reset"), RESET),
    **dict.fromkeys(("reboot", "node reboot required"), _REBOOT),
    "drain p2p": "let the jobs of the GPU end and give it none that use peer access, then run"
    " nvidia-smi --gpu-reset -i ADDRESS, %s;" % EACH,
}


class Fault(NamedTuple):
    """One thing that may be wrong.   text, want: "": as if it were not.   fix, severity: instead of the check's."""

    is_there: bool
    text: str = ""
    want: str = ""
    fix: Optional[str] = None
    severity: Optional[str] = None
    cause: Union[Finding, str, None] = None


def judge(
    gpu: smi.Gpu,
    name: str,
    growth: Growth,
    power_limit: Optional[float],
    trouble: Optional[Finding],
    lost: Optional[Finding] = None,
) -> List[Finding]:
    """Return the findings of one GPU.

    name: the subject.   power_limit: watts that the site declares.   trouble: its Xid, which causes others.
    lost: the Xid of a GPU that has fallen off the bus: the driver then requests a reboot for all others.
    """
    cause = trouble if trouble is not None and not trouble.ok else None
    reboots = _RECOVERY.get(gpu.texts.get("recovery", "").lower()) == _REBOOT
    recovery = _recovery(gpu, name, cause or (lost if reboots else None))
    if recovery.state == "drift" and recovery.because is None:
        cause = recovery
    ecc, mig = _ecc(gpu, name, growth, cause), _mig(gpu, name)
    found = [recovery, _answers(gpu, name, cause), ecc, _rows(gpu, name, cause or ecc, mig)]
    found += [_repair(gpu, name, cause or ecc), mig, _power(gpu, name, power_limit), _clocks(gpu, name)]
    found += [_temperature(gpu, name), _confidential(gpu, name), _replays(gpu, name, growth)]
    return found + ([] if gpu.reasons is None else [_throttle(gpu, name, growth)])


def explained(found: Sequence[Finding]) -> List[Finding]:
    """Return the findings of one GPU, in which what is unknown is caused by the values that were not read."""
    answers = next(one for one in found if one.check == GPU_ANSWERS.id)
    unexplained = [one for one in found if one.state == "unknown" and not one.because and one is not answers]
    return [replace(one, because=answers.id) if one in unexplained and not answers.ok else one for one in found]


def _answers(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    source, want = " ".join(smi.COMMAND), "a value of every element"
    # judge.py judges the fabric's state, where the profile has an NVLink fabric.
    elsewhere = {"fabric_state", *(("row_remap",) if gpu.flags.get("mig") else ())}
    elsewhere |= {"ecc", "memory_repair"} if gpu.flags.get("ecc") is False else set()
    missing = [path for check, paths in gpu.unread.items() if check not in elsewhere for path in paths]
    if gpu.lost or missing:
        failed = [text.partition(": ")[0] for text in gpu.lost]
        text = _first([*gpu.lost, *("%s: no value" % path for path in dict.fromkeys(missing) if path not in failed)])
        severity = "critical" if gpu.lost else "major"
        return GPU_ANSWERS.judge(name, "unknown", want, text, source, because=cause, severity=severity)
    return GPU_ANSWERS.judge(name, "ok", want, "%d elements" % smi.NEEDED, source)


def _first(texts: Sequence[str]) -> str:
    return "; ".join(texts[:5]) + (", and %d more" % (len(texts) - 5) if len(texts) > 5 else "")


def assess(
    check: Check,
    gpu: smi.Gpu,
    name: str,
    elements: str,
    faults: Iterable[Fault],
    want: str,
    have: Optional[str],
    cause: Optional[Finding] = None,
) -> Finding:
    """Return the first fault that is there; else ok if all that the check needs was read, unsupported or unknown.

    elements: where nvidia-smi prints the values.   have: what was read; None: nothing.
    cause: of an element without a value.
    """
    source = "%s, %s" % (" ".join(smi.COMMAND), elements)
    for fault in faults:
        if fault.is_there:
            text, severity = fault.text or have, fault.severity
            return check.judge(
                name, "drift", fault.want or want, text, source, fault.fix, fault.cause, severity=severity
            )
    needed = gpu.unread.get(check.id.partition(".")[2])
    if needed is None and have is None:
        text = "%s with driver %s has none" % (gpu.texts.get("product"), gpu.driver or "unknown")
        return check.judge(name, "unsupported", None, text, source, "nothing is to be done")
    if have is None or needed:
        text = _first(["%s: no value" % path for path in needed or ()]) or "no value"
        return check.judge(name, "unknown", want, text, source, GPU_ANSWERS.fix, cause)
    return check.judge(name, "ok", want, have, source)


def _recovery(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    action = gpu.texts.get("recovery")
    if action is None and "reset_required" in gpu.flags:
        # Drivers before 570.
        action = "Reset" if gpu.flags["reset_required"] else "None"
        action = "Drain and Reset" if gpu.flags.get("drain_and_reset") else action
    word, elements = (action or "none").lower(), "gpu_recovery_action or gpu_reset_status"
    if word != "none" and word not in _RECOVERY:
        fix = "look up the requested action (nvidia-smi -q, GPU Recovery Action) at NVIDIA, and do it; %s" % RECHECK
        return RECOVERY.judge(name, "unknown", "None", action, " ".join(smi.COMMAND), fix, cause)
    fault = Fault(word != "none", fix="%s %s" % (_RECOVERY.get(word), RECHECK), cause=cause)
    return assess(RECOVERY, gpu, name, elements, [fault], "None", action, cause)


def _ecc(gpu: smi.Gpu, name: str, growth: Growth, cause: Optional[Finding]) -> Finding:
    grown, seconds = growth
    lost = {kind: n for kind, n in gpu.counts.items() if kind.startswith("volatile ") and "uncorr" in kind and n}
    on, pending = gpu.flags.get("ecc"), gpu.flags.get("ecc_pending")
    off = "off%s" % (", on after the next reset" if pending else "") if on is False else "off after the next reset"
    switch = "drain the node, run nvidia-smi -i ADDRESS -e 1, %s, then reset the GPUs or reboot; %s" % (EACH, RECHECK)
    days = max(seconds, record.DAY) / record.DAY
    many = {kind: grown[kind] for kind, most in _CORRECTED.items() if grown.get(kind, 0) > most * days}
    faults = (
        Fault(bool(lost), counts(lost), fix="%s %s" % (RESET, RECHECK), cause=cause),
        Fault(on is False or pending is False, off, fix=switch),
        Fault(bool(many), counts(many) + within(seconds), "few corrected errors", _DIAGNOSE),
    )
    have = "on, no uncorrected errors since the driver was loaded" if on and pending else None
    return assess(ECC, gpu, name, "ecc_mode and ecc_errors", faults, "on, no uncorrected errors", have)


def _rows(gpu: smi.Gpu, name: str, cause: Optional[Finding], mig: Finding) -> Finding:
    rows, pending = gpu.counts.get("rows"), gpu.flags.get("row_pending", False)
    text = "%d rows remapped for uncorrectable errors" % (rows or 0)
    most = "no failure, fewer than %d rows" % _ROWS
    failed = gpu.flags.get("row_failure", False)
    faults = (
        Fault(failed, "a row could not be remapped", most, REPLACE, "critical"),
        Fault((rows or 0) >= _ROWS, text, most, REPLACE, "critical"),
        Fault(pending, "a row or page waits to be taken out of use", "none pending", _WHEN_IDLE, "minor", cause),
    )
    have, unread = None if rows is None else text + ", none pending, no failure", None if mig.ok else mig
    return assess(ROW_REMAP, gpu, name, "remapped_rows", faults, "none pending, no failure", have, unread)


def _repair(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    flags = ("unrepairable", "sram_threshold", "channel_pending", "tpc_pending")
    beyond, errors, channel, tpc = (gpu.flags.get(flag, False) for flag in flags)
    faults = (
        Fault(beyond, "unrepairable memory", "none", REPLACE, "critical"),
        Fault(errors, "too many SRAM errors (threshold exceeded)", "none", REPLACE, "critical"),
        Fault(channel or tpc, "repair waits for a reset", "none pending", _WHEN_IDLE, "minor", cause),
    )
    have = ", ".join("%s: No" % flag for flag in flags if flag in gpu.flags) or None
    unread = cause if gpu.flags.get("ecc") is False else None
    return assess(REPAIR, gpu, name, "ecc_errors", faults, "none pending", have, unread)


def _throttle(gpu: smi.Gpu, name: str, growth: Growth) -> Finding:
    grown, seconds = growth
    held = {reason: grown.get("slowed " + reason, 0) / 1e6 for reason in _SLOWED if seconds >= record.SHORTEST}
    long = {reason: time for reason, time in held.items() if time > _SLOWED[reason] * seconds}
    slowed = ["%s for %.0f min" % (reason, time / 60) for reason, time in long.items()]
    faults = (
        Fault(bool(gpu.reasons), "slowed now: %s" % ", ".join(sorted(gpu.reasons or ()))),
        Fault(bool(slowed), ", ".join(slowed) + within(seconds)),
    )
    return assess(THROTTLE, gpu, name, "clocks_event_reasons", faults, "not slowed", "not slowed now")


def _pair(numbers: Mapping[str, float], value: str, limit: str) -> Tuple[float, float, bool]:
    """Return a value, its limit, and whether both were read: NaN, which was not, is neither above nor below."""
    pair = numbers.get(value, math.nan), numbers.get(limit, math.nan)
    return (*pair, not any(map(math.isnan, pair)))


def _power(gpu: smi.Gpu, name: str, declared: Optional[float]) -> Finding:
    default = {"power_default": declared} if declared else {}
    limit, want, known = _pair({**gpu.numbers, **default}, "power_limit", "power_default")
    fix = "run nvidia-smi -i ADDRESS -pl %g, %s; look for what set it at boot (a unit, a script, the BMC)%s; %s" % (
        *(want, EACH, ", or set node_health_power_limit where the site means it" if declared is None else "", RECHECK),
    )
    have, faults = "%g W" % limit if known else None, [Fault(abs(limit - want) >= 1, fix=fix)]
    return assess(POWER_LIMIT, gpu, name, "gpu_power_readings", faults, "%g W" % want if known else "the default", have)


def _clocks(gpu: smi.Gpu, name: str) -> Finding:
    clock, default, known = _pair(gpu.numbers, "clock", "clock_default")
    faults = [Fault(clock < default, fix="run nvidia-smi -i ADDRESS -rac, %s; %s" % (EACH, RECHECK))]
    have, want = ("%g MHz" % clock, "%g MHz" % default) if known else (None, "the default")
    return assess(CLOCKS, gpu, name, "applications_clocks", faults, want, have)


def _temperature(gpu: smi.Gpu, name: str) -> Finding:
    """Judge degrees, and the distance to the limit (T.Limit), which must not come down to where it slows down."""
    margin, least, has_margin = _pair(gpu.numbers, "margin", "margin_limit")
    degrees, most, has_limit = _pair(gpu.numbers, "temperature", "temperature_limit")
    faults = (
        Fault(margin <= least, "T.Limit %g C" % margin, "T.Limit above %g C" % least),
        Fault(degrees >= most, "%g C" % degrees, "below %g C" % most),
    )
    have = "%g C" % degrees if has_limit else "T.Limit %g C" % margin if has_margin else None
    return assess(TEMPERATURE, gpu, name, "temperature", faults, "below where it slows down", have)


def _mig(gpu: smi.Gpu, name: str) -> Finding:
    on, pending = gpu.flags.get("mig"), gpu.flags.get("mig_pending")
    text = "on%s" % (", off after the next reset" if pending is False else "") if on else "on after the next reset"
    fix = "drain the node, run nvidia-smi -i ADDRESS -mig 0, %s, then reset the GPUs; %s" % (EACH, RECHECK)
    faults, have = [Fault(bool(on or pending), text, fix=fix)], None if on is None else "off"
    return assess(MIG, gpu, name, "mig_mode", faults, "off", have)


def _confidential(gpu: smi.Gpu, name: str) -> Finding:
    protected = gpu.counts.get("protected_mib")
    have = None if protected is None else "%d MiB are protected" % protected
    return assess(CONFIDENTIAL, gpu, name, "cc_protected_memory_usage", [Fault(bool(protected))], "off", have)


def _replays(gpu: smi.Gpu, name: str, growth: Growth) -> Finding:
    (grown, seconds), total = growth, gpu.counts.get("replays")
    # If the generation is not known, the limit of the fastest.
    most = _REPLAYS.get(gpu.counts.get("gen", 0), max(_REPLAYS.values())) * (gpu.counts.get("width") or 16) / 16.0
    n = grown.get("replays", 0) if seconds >= record.SHORTEST else 0
    fault = Fault(n > most * seconds / 60, "%d%s, %.0f a minute" % (n, within(seconds), n * 60 / max(seconds, 1.0)))
    have, want = None if total is None else "%d in all" % total, "%g a minute at most" % most
    return assess(PCIE_REPLAY, gpu, name, "replay_counter", [fault], want, have)


def counts(of: Mapping[str, int]) -> str:
    """Return ``2 fatal, 3 nonfatal``."""
    return ", ".join("%d %s" % (n, name) for name, n in sorted(of.items()))


def within(seconds: float) -> str:
    """Return ``in 24.0 h``, after a blank."""
    return " in %.1f h" % (seconds / 3600)
