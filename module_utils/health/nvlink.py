# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and judge NVLinks, link by link: speed (``nvidia-smi nvlink -s``) and errors (``-e``).

NVLink 2 to 4 count replays, recoveries and CRC errors. NVLink 5 (Blackwell) has other counters under other names, of
which some are large on a healthy link and are left out here: what FEC has corrected, and everything before FEC (raw
errors of the lanes). The counters of NVML answer 0 on Hopper; ``-e`` is the source that counts.
``-re``, which clears them for everybody, is never run.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import ParseError, Problem
from ..core.number import whole
from ..machine import platform_checks
from . import record, smi
from .judge_gpu import GPU_ANSWERS, RESET, Growth, within
from .service import RECHECK

STATUS = ("nvidia-smi", "nvlink", "-s")
ERRORS = ("nvidia-smi", "nvlink", "-e")
_GPU = re.compile(r"GPU ([0-9]{1,4}): .*\(UUID: ([^()]{1,80})\)")
_SPEED = re.compile(r"Link ([0-9]{1,3}): (?:<inactive>|([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s)")
_COUNTER = re.compile(r"Link ([0-9]{1,3}): ([A-Za-z][A-Za-z -]{0,60}[A-Za-z]): (\S{1,40})")
# FEC errors by their number, bit error rates, lanes: "FEC Errors - 0: 12", "Raw BER Lane 0: 2061".
_OTHER = re.compile(r"Link [0-9]{1,3}: .*")
# As nvidia-smi names them -> short.
COUNTERS = {
    "Replay Errors": "replays",
    "Recovery Errors": "recoveries",
    "CRC Errors": "CRC errors",
    "Malformed packet Errors": "malformed packets",
    "Buffer overrun Errors": "buffer overruns",
    "Rx Errors": "receive errors",
    "Local link integrity Errors": "link integrity errors",
    "Link recovery successful events": "recoveries",
    "Link recovery failed events": "failed recoveries",
    "Effective Errors": "effective errors",
    "Symbol Errors": "symbol errors",
}
# CRC errors a second on one NVLink, at which DCGM fails; fewer are a warning.
_CRC_PER_SECOND = 100.0
# Recoveries of one GPU's NVLinks in a day. Of 320 GPUs the one that failed five days later had 505, the others together
# 145 (marin-community/marin#9086): less than one each. From here on it is no chance; own.
_RECOVERIES = 10
# GB/s of an NVLink, at least, by architecture: 25 (NVLink 3), 26.562 (4), 53.125 (5; 50 by older drivers).
_GBPS = {"Ampere": 25.0, "Hopper": 26.5, "Blackwell": 50.0}
# Of Ampere's boards without HBM (A40, RTX A6000), which a bridge joins: 14.062.
_BRIDGED, _HBM = 14.0, re.compile(r"A100|A800|A30\b")
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

# By UUID and number of the link.
Speeds = Mapping[str, Mapping[int, Optional[float]]]
Errors = Mapping[str, Mapping[int, Mapping[str, int]]]


def parse_status(text: str) -> Speeds:
    """Return GB/s of each link, None for an inactive one; {} for a GPU without NVLink. Raises ParseError.

    The number of links is not judged here.
    """
    found: Dict[str, Dict[int, Optional[float]]] = {}
    for uuid, lines in _by_gpu(text, lambda line: _SPEED.fullmatch(line)):
        found.setdefault(uuid, {}).update({int(link): float(speed) if speed else None for link, speed in lines})
    return found


def parse_errors(text: str) -> Errors:
    """Return COUNTERS by link; {} for a GPU without NVLink, or whose driver has none. Raises ParseError.

    A counter that is N/A, or unknown to us, is left out, and is not 0.
    """
    found: Dict[str, Dict[int, Dict[str, int]]] = {}
    for uuid, lines in _by_gpu(text, lambda line: _COUNTER.fullmatch(line) or _OTHER.fullmatch(line)):
        links = found.setdefault(uuid, {})
        for words in lines:
            name = COUNTERS.get(words[1]) if words else None
            count = whole(words[2]) if name else None
            if name is not None and count is not None:
                links.setdefault(int(words[0]), {})[name] = count
    return found


def _by_gpu(text: str, match: Callable[[str], Optional[re.Match[str]]]) -> List[Tuple[str, List[Tuple[str, ...]]]]:
    """Return (UUID, groups of the lines below it) of each GPU; none for one without NVLink. Raises ParseError."""
    blocks: List[Tuple[str, List[Tuple[str, ...]]]] = []
    for line in (line.strip() for line in text.splitlines()):
        head, found = _GPU.fullmatch(line), match(line)
        if head is not None:
            blocks.append((printable(head.group(2)), []))
        elif line and not _is_without(line):
            if not blocks or found is None:
                raise ParseError("%.100r, expected 'Link <n>: ...' below 'GPU 0: <name> (UUID: <uuid>)'" % line)
            blocks[-1][1].append(found.groups())
    return blocks


def has_no_nvlink(text: str) -> bool:
    """Return whether all boards of the output are without NVLink, whatever code the tool ends with then."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_is_without(line) for line in lines if not _GPU.fullmatch(line))


def _is_without(line: str) -> bool:
    words = line.lower()
    return words.startswith("device does not have or support nvlink") or (
        words.startswith("nvml:") and ("not supported" in words or "all links are inactive" in words)
    )


def judge(gpu: smi.Gpu, name: str, speeds: Optional[Speeds], errors: Optional[Errors], growth: Growth) -> List[Finding]:
    """Judge the NVLinks of a GPU; nothing if nvidia-smi nvlink lists no links at all, which platform.nvlinks judges.

    speeds, errors: of all GPUs; None: not read.   growth: of the GPU's counters.
    """
    found, active = [], {}
    if speeds is not None and any(speeds.values()):
        links = speeds.get(gpu.uuid or "", {})
        active = {link: speed for link, speed in links.items() if speed is not None}
        # All links of a node are of one kind.
        fastest = max(speed or 0 for of_gpu in speeds.values() for speed in of_gpu.values())
        cause = platform_checks.NVLINKS.finding_id(name) if gpu.uuid in speeds else None
        found.append(_judge_speeds(gpu, name, active, fastest, cause))
    if errors is not None and (active or any(errors.values())):
        counted = sum(bool(values) for values in errors.get(gpu.uuid or "", {}).values())
        found.append(_judge_errors(gpu, name, counted, len(active), growth))
    return found


def judge_calls(problems: Sequence[Problem]) -> List[Finding]:
    """Judge calls of nvidia-smi nvlink that failed."""
    found = []
    for check, argv in ((NVLINK_STATE, STATUS), (NVLINK_ERRORS, ERRORS)):
        command = " ".join(argv)
        for problem in problems:
            if problem.source.endswith(command):
                fix = "run %s on the node" % command
                found.append(check.judge("nvlinks", "unknown", "a response", problem.message, command, fix))
    return found


def _judge_speeds(
    gpu: smi.Gpu, name: str, active: Mapping[int, float], fastest: float, because: Optional[str]
) -> Finding:
    """Judge the speed of active links.   because: id of the finding of links that are down."""
    architecture = gpu.texts.get("architecture")
    bridged = architecture == "Ampere" and not _HBM.search(gpu.texts.get("product", ""))
    least = max(_BRIDGED if bridged else _GBPS.get(architecture or "", 0), fastest * 0.99)
    command, want, fix = " ".join(STATUS), "%g GB/s or more" % least, "run nvidia-smi nvlink -s on the node"
    slow = ["link %d %g GB/s" % pair for pair in sorted(active.items()) if pair[1] < least]
    if slow:
        return NVLINK_STATE.judge(name, "drift", want, ", ".join(slow), command, "%s %s" % (RESET, RECHECK))
    if not active:
        return NVLINK_STATE.judge(name, "unknown", want, "no active link", command, fix, because)
    if architecture is None:
        # All links may be equally slow.
        return NVLINK_STATE.judge(name, "unknown", want, "the GPU's architecture: no value", command, GPU_ANSWERS.fix)
    text = "%d links of %g GB/s or more" % (len(active), min(active.values()))
    return NVLINK_STATE.judge(name, "ok", want, text, command)


def _judge_errors(gpu: smi.Gpu, name: str, counted: int, active: int, growth: Growth) -> Finding:
    """Judge the growth of a GPU's NVLink errors.   counted: links with counters.   active: links that need them."""
    command, (grown, seconds) = " ".join(ERRORS), growth
    worse = {key: n for key, n in grown.items() if key.startswith("link ") and n and seconds >= record.SHORTEST}
    text = "counters of %d of %d links" % (counted, active)
    if not worse and (gpu.uuid is None or counted < max(active, 1)):
        return NVLINK_ERRORS.judge(name, "unknown", "counters", text, command, "run %s on the node" % command)
    if not worse:
        return NVLINK_ERRORS.judge(name, "ok", "no growth", text, command)
    recoveries = sum(n for key, n in worse.items() if key.endswith("recoveries"))
    failed = any(key.endswith(("failed recoveries", "replays")) for key in worse)
    rates = [n / seconds for key, n in worse.items() if key.endswith(("CRC errors", "effective errors"))]
    bad = failed or recoveries >= _RECOVERIES or max(rates, default=0) >= _CRC_PER_SECOND
    worst = sorted(worse.items(), key=lambda item: -item[1])
    text = ", ".join("%s +%d" % item for item in worst[:6]) + within(seconds)
    fix = "no action is needed for a single increase; if the counters of the same link grow in every run, " + RESET
    if bad:
        fix = "%s if it happens again, run dcgmi diag -r 3, and have the GPU or the board replaced;" % RESET
    severity = "major" if bad else "minor"
    fix = "%s %s" % (fix, RECHECK)
    return NVLINK_ERRORS.judge(name, "drift", "no growth", text, command, fix, severity=severity)
