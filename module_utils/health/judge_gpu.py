# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge one GPU by what nvidia-smi reports and by the growth of its counters since an earlier run.

An idle GPU's clocks, power state and PCIe speed are not findings, nor is persistence mode: each finding is a state that
no load explains, or growth, never a total. A check is ok only if every element that it needs has a value; what the GPU
cannot have is unsupported. Sources: limits.py, smi.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from . import limits, nvlink, record, smi
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
    fix="run nvidia-smi -q on the node; if a GPU is lost or requires a reset, drain the node and reboot it; otherwise"
    " reinstall the driver (nvidia-smi and kernel module of one version); " + RECHECK,
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
    why="a defective memory row or page is taken out of use at the next reset; without a spare, replace the GPU",
)
"""Are remapped memory rows (before Ampere: retired pages) few, none pending and none failed"""
REPAIR = Check(
    "node_health.memory_repair",
    why="the driver counts memory as beyond repair, or waits for a reset to repair it",
)
"Is all memory repaired, with no repair pending or failed"
THROTTLE = Check(
    "node_health.throttle",
    why="one GPU whose clock is held down by heat or by its power supply holds up every rank of a job",
    fix="check fans, air intake, cooling loop, power supplies and the BMC's event log; compare with its neighbours in"
    " the rack; " + RECHECK,
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
    fix="switch it off on the host with NVIDIA's gpu-admin-tools: nvidia_gpu_tools.py --devices gpus --set-cc-mode=off"
    " --reset-after-cc-mode-switch; or move the node into a group without these bars",
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
"Do all active NVLinks run at their full speed (`platform.nvlinks` judges how many are active)"
NVLINK_ERRORS = Check(
    "node_health.nvlink_errors",
    why="a link that recovers again and again loses bandwidth now and the GPU within days",
)
"Did the errors and recoveries of no NVLink grow since the previous run"

_REBOOT = "drain the node and reboot it;"
_WHEN_IDLE = "jobs that run may continue: when the node is idle run nvidia-smi --gpu-reset -i ADDRESS, %s; %s" % (
    EACH,
    RECHECK,
)
# Counter of the record.
PAGES = "retired pages"
# Values of gpu_recovery_action in lower case, except "none" -> what to do.
_RECOVERY = {
    "reset": RESET,
    "gpu reset required": RESET,
    "node reboot required": _REBOOT,
    "reboot": _REBOOT,
    "drain p2p": "let the jobs of the GPU end and give it none that use peer access, then run"
    " nvidia-smi --gpu-reset -i ADDRESS, %s;" % EACH,
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
    """Return the findings of one GPU.

    name: the subject.   power_limit: watts that the site declares.   trouble: its Xid, which causes others.
    lost: the Xid of a GPU that has fallen off the bus: the driver then requests a reboot for all others.
    """
    cause = trouble if trouble is not None and not trouble.ok else None
    reboots = _RECOVERY.get((gpu.recovery or "").lower()) == _REBOOT
    recovery = _recovery(gpu, name, cause or (lost if reboots else None))
    if recovery.state == "drift" and recovery.because is None:
        cause = recovery
    ecc, mig = _ecc(gpu, name, growth, cause), _mig(gpu, name)
    found = [ecc, _rows(gpu, name, growth, cause or ecc, mig), _repair(gpu, name, cause or ecc), mig]
    found += [_power(gpu, name, power_limit), _clocks(gpu, name), _temperature(gpu, name), _confidential(gpu, name)]
    found += [_replays(gpu, name, growth)] + ([] if gpu.reasons is None else [_throttle(gpu, name, growth)])
    return [recovery, _answers(gpu, name, cause), *found]


def explained(found: Sequence[Finding]) -> List[Finding]:
    """Return the findings of one GPU, in which what is unknown is caused by the values that were not read."""
    answers = next(one for one in found if one.check == GPU_ANSWERS.id)
    return [
        replace(one, because=answers.id)
        if one.state == "unknown" and not one.because and not answers.ok and one is not answers
        else one
        for one in found
    ]


def _source(elements: str) -> str:
    return "%s, %s" % (" ".join(smi.COMMAND), elements)


def _answers(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    source, want = " ".join(smi.COMMAND), "a value of every element"
    # judge.py judges the fabric's state, where the profile has an NVLink fabric.
    elsewhere = {"fabric_state", *(("row_remap",) if gpu.mig else ())}
    elsewhere |= {"ecc", "memory_repair"} if gpu.ecc is False else set()
    missing = [path for check, paths in gpu.unread.items() if check not in elsewhere for path in paths]
    if gpu.lost or missing:
        failed = [text.partition(": ")[0] for text in gpu.lost]
        text = _first([*gpu.lost, *("%s: no value" % path for path in dict.fromkeys(missing) if path not in failed)])
        severity = "critical" if gpu.lost else "major"
        return GPU_ANSWERS.judge(name, "unknown", want, text, source, because=cause, severity=severity)
    return GPU_ANSWERS.judge(name, "ok", want, "%d elements" % smi.ELEMENTS, source)


def _first(texts: Sequence[str], most: int = 5) -> str:
    more = ", and %d more" % (len(texts) - most) if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def assess(
    check: Check, gpu: smi.Gpu, name: str, want: str, have: Optional[str], source: str, cause: Optional[Finding] = None
) -> Finding:
    """Return ok with the value if all that the check needs was read, else unsupported or unknown.

    have: what was read; None: nothing.   cause: of an element without a value.
    """
    needed = gpu.unread.get(check.id.partition(".")[2])
    if needed is None and have is None:
        text = "%s with driver %s has none" % (gpu.product, gpu.driver or "unknown")
        return check.judge(name, "unsupported", None, text, source, "nothing is to be done")
    if have is None or needed:
        text = _first(["%s: no value" % path for path in needed or ()]) or "no value"
        return check.judge(name, "unknown", want, text, source, GPU_ANSWERS.fix, cause)
    return check.judge(name, "ok", want, have, source)


def _recovery(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    said, element = gpu.recovery, "gpu_recovery_action"
    if said is None:
        # Drivers before 570.
        element = "gpu_reset_status"
        said = "Reset" if gpu.flags.get("reset_required") else None
        said = "Drain and Reset" if gpu.flags.get("drain_and_reset") else said
        if said is None and "reset_required" in gpu.flags:
            said = "None"
    word, source = (said or "none").lower(), _source(element)
    if word == "none":
        return assess(RECOVERY, gpu, name, "None", said, source, cause)
    if word in _RECOVERY:
        return RECOVERY.judge(name, "drift", "None", said, source, "%s %s" % (_RECOVERY[word], RECHECK), cause)
    fix = "look up the requested action (nvidia-smi -q, GPU Recovery Action) at NVIDIA, and do it; %s" % RECHECK
    return RECOVERY.judge(name, "unknown", "None", said, source, fix, cause)


def _ecc(gpu: smi.Gpu, name: str, growth: Growth, cause: Optional[Finding]) -> Finding:
    (grown, seconds), source = growth, _source("ecc_mode and ecc_errors")
    lost = {kind: n for kind, n in gpu.volatile.items() if "uncorrectable" in kind and n}
    if lost:
        text = "%s since the driver was loaded" % counts(lost)
        fix = "%s %s" % (RESET, RECHECK)
        return ECC.judge(name, "drift", "no uncorrected errors", text, source, fix, cause)
    if gpu.ecc is False or gpu.ecc_pending is False:
        text = "off" if gpu.ecc is False else "off after the next reset"
        if gpu.ecc is False and gpu.ecc_pending:
            text = "off, on after the next reset"
        fix = "drain the node, run nvidia-smi -i ADDRESS -e 1, %s, then reset the GPUs or reboot; %s" % (EACH, RECHECK)
        return ECC.judge(name, "drift", "on", text, source, fix)
    days = max(seconds, limits.DAY) / limits.DAY
    many = {
        kind: grown["ecc " + kind]
        for kind, most in limits.CORRECTED.items()
        if grown.get("ecc " + kind, 0) > most * days
    }
    if many:
        fix = "run dcgmi diag -r 3 on the drained node; if that fails, or the errors continue, have the GPU replaced"
        return ECC.judge(name, "drift", "few corrected errors", counts(many) + within(seconds), source, fix)
    have = "on, no uncorrected errors since the driver was loaded" if gpu.ecc and gpu.ecc_pending else None
    return assess(ECC, gpu, name, "on, no uncorrected errors", have, source)


def _rows(gpu: smi.Gpu, name: str, growth: Growth, cause: Optional[Finding], mig: Finding) -> Finding:
    (grown, seconds), source = growth, _source("remapped_rows and retired_pages")
    single, double = gpu.retired
    pages, more = (single or 0) + (double or 0), grown.get(PAGES, 0)
    text = "" if single is None else "%d pages retired for single bit errors, %d for double bit" % (single, double or 0)
    worn = ""
    if gpu.flags.get("row_failure"):
        worn = "a row could not be remapped"
    elif gpu.rows is not None and gpu.rows >= limits.ROWS:
        worn = "%d rows are remapped for uncorrectable errors" % gpu.rows
    elif pages >= limits.RETIRED:
        worn = text
    if worn:
        want = "no failure, fewer than %d rows or %d pages" % (limits.ROWS, limits.RETIRED)
        return ROW_REMAP.judge(name, "drift", want, worn, source, REPLACE, severity="critical")
    if pages >= limits.RETIRED_MANY or (double or 0) >= limits.RETIRED_DOUBLE or more:
        fix = "run dcgmi diag -r 3 on the drained node; if that fails, or more pages are retired, have the GPU replaced"
        want = "fewer than %d, %d for double bit, none new" % (limits.RETIRED_MANY, limits.RETIRED_DOUBLE)
        text += "; %d new%s" % (more, within(seconds)) if more else ""
        return ROW_REMAP.judge(name, "drift", want, text, source, fix, cause)
    if gpu.flags.get("row_pending") or gpu.flags.get("retirement_pending"):
        what = "row waits to be remapped" if gpu.flags.get("row_pending") else "page waits to be retired"
        return ROW_REMAP.judge(name, "drift", "none pending", "a " + what, source, _WHEN_IDLE, cause, severity="minor")
    text = text if gpu.rows is None else "%d rows remapped, none pending, no failure" % gpu.rows
    return assess(ROW_REMAP, gpu, name, "none pending, no failure", text or None, source, None if mig.ok else mig)


def _repair(gpu: smi.Gpu, name: str, cause: Optional[Finding]) -> Finding:
    source = _source("ecc_errors")
    if gpu.flags.get("unrepairable") or gpu.flags.get("sram_threshold"):
        text = "unrepairable memory" if gpu.flags.get("unrepairable") else "too many SRAM errors (threshold exceeded)"
        return REPAIR.judge(name, "drift", "none", text, source, REPLACE, severity="critical")
    waiting = [word for word in ("channel", "tpc") if gpu.flags.get(word + "_pending")]
    if waiting:
        text = "repair of %s waits for a reset" % " and ".join(waiting)
        return REPAIR.judge(name, "drift", "none pending", text, source, _WHEN_IDLE, cause, severity="minor")
    flags = ("sram_threshold", "unrepairable", "channel_pending", "tpc_pending")
    have = ", ".join("%s: No" % flag for flag in flags if flag in gpu.flags) or None
    return assess(REPAIR, gpu, name, "none pending", have, source, None if gpu.ecc is not False else cause)


def _throttle(gpu: smi.Gpu, name: str, growth: Growth) -> Finding:
    (grown, seconds), source = growth, _source("clocks_event_reasons")
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
    have = "not slowed now" + "".join(", %s for %.0f s" % (of, us / 1e6) for of, us in sorted(gpu.slowed_us.items()))
    return assess(THROTTLE, gpu, name, "not slowed", have, source)


def _held(
    check: Check,
    gpu: smi.Gpu,
    name: str,
    want: str,
    have: Optional[str],
    elements: str,
    wrong: bool,
    fix: Optional[str] = None,
) -> Finding:
    """Judge a value: drift if it is wrong, else as ``assess``."""
    if wrong:
        return check.judge(name, "drift", want, have, _source(elements), fix)
    return assess(check, gpu, name, want, have, _source(elements))


def _power(gpu: smi.Gpu, name: str, declared: Optional[float]) -> Finding:
    limit, want = gpu.power_limit, declared or gpu.power_default
    text, have = "the default" if want is None else "%g W" % want, None
    wrong, fix = False, ""
    if limit is not None and want is not None:
        have, wrong = "%g W" % limit, abs(limit - want) >= 1
        fix = "run nvidia-smi -i ADDRESS -pl %g, %s; look for what set it at boot (a unit, a script, the BMC)"
        fix %= (want, EACH)
        fix += ", or set node_health_power_limit where the site means it" if declared is None else ""
    return _held(POWER_LIMIT, gpu, name, text, have, "gpu_power_readings", wrong, fix + "; " + RECHECK)


def _clocks(gpu: smi.Gpu, name: str) -> Finding:
    want, have, wrong = "the default", None, False
    if gpu.clock is not None and gpu.clock_default is not None:
        want, have, wrong = "%g MHz" % gpu.clock_default, "%g MHz" % gpu.clock, gpu.clock < gpu.clock_default
    fix = "run nvidia-smi -i ADDRESS -rac, %s; %s" % (EACH, RECHECK)
    return _held(CLOCKS, gpu, name, want, have, "applications_clocks", wrong, fix)


def _temperature(gpu: smi.Gpu, name: str) -> Finding:
    have, want, wrong = None, "below where it slows down", False
    if gpu.margin is not None:
        want, have = "T.Limit above %g C" % gpu.margin[1], "T.Limit %g C" % gpu.margin[0]
        wrong = gpu.margin[0] <= gpu.margin[1]
    if gpu.temperature is not None and not wrong:
        want, have = "below %g C" % gpu.temperature[1], "%g C" % gpu.temperature[0]
        wrong = gpu.temperature[0] >= gpu.temperature[1]
    return _held(TEMPERATURE, gpu, name, want, have, "temperature", wrong)


def _mig(gpu: smi.Gpu, name: str) -> Finding:
    have = None if gpu.mig is None else "off"
    if gpu.mig or gpu.mig_pending:
        have = "on" if gpu.mig else "on after the next reset"
        have += ", off after the next reset" if gpu.mig and gpu.mig_pending is False else ""
    fix = "drain the node, run nvidia-smi -i ADDRESS -mig 0, %s, then reset the GPUs; %s" % (EACH, RECHECK)
    return _held(MIG, gpu, name, "off", have, "mig_mode", bool(gpu.mig or gpu.mig_pending), fix)


def _confidential(gpu: smi.Gpu, name: str) -> Finding:
    have = None if gpu.protected_mib is None else "%d MiB are protected" % gpu.protected_mib
    return _held(CONFIDENTIAL, gpu, name, "off", have, "cc_protected_memory_usage", bool(gpu.protected_mib))


def _replays(gpu: smi.Gpu, name: str, growth: Growth) -> Finding:
    grown, seconds = growth
    n = grown.get("replays", 0)
    # If the generation is not known, the limit of the fastest.
    most = limits.REPLAYS.get(gpu.gen or 0, max(limits.REPLAYS.values())) * (gpu.width or 16) / 16.0
    wrong = seconds >= record.SHORTEST and n > most * seconds / 60
    have = None if gpu.replays is None else "%d in all" % gpu.replays
    if have and seconds >= record.SHORTEST:
        have += ", %d%s" % (n, within(seconds))
    if wrong:
        have = "%d%s, %.0f a minute" % (n, within(seconds), n * 60 / seconds)
    return _held(PCIE_REPLAY, gpu, name, "%g a minute at most" % most, have, "replay_counter", wrong)


# -- NVLinks ---------------------------------------------------------------------------------------------------------


def speeds(
    gpu: smi.Gpu, name: str, links: Optional[Mapping[int, Optional[float]]], fastest: float, because: str
) -> Finding:
    """Judge the speed of a GPU's active NVLinks.

    links: GB/s of each; None: nvidia-smi does not list the GPU.   fastest: of all links of the node, which are of one
    kind.   because: id of the finding of links that are down.
    """
    least = max(limits.NVLINK_GBPS.get(gpu.architecture or "", 0), fastest * 0.99)
    active = {link: speed for link, speed in (links or {}).items() if speed is not None}
    slow = {link: speed for link, speed in active.items() if speed < least}
    command, want = " ".join(nvlink.STATUS), "%g GB/s or more" % least
    if slow:
        text = ", ".join("link %d %g GB/s" % pair for pair in sorted(slow.items()))
        return NVLINK_STATE.judge(name, "drift", want, text, command, "%s %s" % (RESET, RECHECK))
    if not active:
        text, cause = ("no active link", because) if links is not None else ("not listed", None)
        return NVLINK_STATE.judge(name, "unknown", want, text, command, "run %s on the node" % command, cause)
    if gpu.architecture is None:
        # All links may be equally slow.
        return NVLINK_STATE.judge(name, "unknown", want, "the GPU's architecture: no value", command, GPU_ANSWERS.fix)
    text = "%d links of %g GB/s or more" % (len(active), min(active.values()))
    return NVLINK_STATE.judge(name, "ok", want, text, command)


def link_errors(gpu: smi.Gpu, name: str, links: Optional[nvlink.LinkErrors], growth: Growth, active: int) -> Finding:
    """Judge the growth of a GPU's NVLink errors.   links: its counters by link.   active: links that need counters."""
    command, (grown, seconds) = " ".join(nvlink.ERRORS), growth
    read = {link: values for link, values in (links or {}).items() if values}
    worse = {key: n for key, n in grown.items() if key.startswith("link ") and n and seconds >= record.SHORTEST}
    if not worse:
        if gpu.uuid is None or len(read) < max(active, 1):
            text = "counters of %d of %d links" % (len(read), active)
            return NVLINK_ERRORS.judge(name, "unknown", "counters", text, command, "run %s on the node" % command)
        text = "no growth on %d links" % len(read) if seconds else "counters of %d links, first run" % len(read)
        return NVLINK_ERRORS.judge(name, "ok", "no growth", text, command)
    recoveries = sum(n for key, n in worse.items() if key.endswith("recoveries"))
    failed = any(key.endswith(("failed recoveries", "replays")) for key in worse)
    rates = [n / seconds for key, n in worse.items() if key.endswith(("CRC errors", "effective errors"))]
    bad = failed or recoveries >= limits.RECOVERIES or max(rates, default=0) >= limits.CRC_PER_SECOND
    worst = sorted(worse.items(), key=lambda item: -item[1])
    text = ", ".join("%s +%d" % item for item in worst[:6]) + within(seconds)
    if len(worst) > 6:
        text += ", and %d more counters" % (len(worst) - 6)
    fix = "no action is needed for a single increase; if the counters of the same link grow in every run, " + RESET
    if bad:
        fix = "%s if it happens again, run dcgmi diag -r 3, and have the GPU or the board replaced;" % RESET
    return NVLINK_ERRORS.judge(
        name, "drift", "no growth", text, command, "%s %s" % (fix, RECHECK), severity="major" if bad else "minor"
    )


def counts(of: Mapping[str, int]) -> str:
    """Return ``2 fatal, 3 nonfatal``."""
    return ", ".join("%d %s" % (n, name) for name, n in sorted(of.items()))


def within(seconds: float) -> str:
    """Return ``in 24.0 h``, after a blank."""
    return " in %.1f h" % (seconds / 3600)
