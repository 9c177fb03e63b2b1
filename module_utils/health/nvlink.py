# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVLinks of each GPU, link by link: speed (``nvidia-smi nvlink -s``) and errors (``-e``).

NVLink 2 to 4 count replays, recoveries and CRC errors. NVLink 5 (Blackwell) has other counters under other names, of
which some are large on a healthy link and are left out here: what FEC has corrected, and everything before FEC (raw
errors of the lanes). The counters of NVML answer 0 on Hopper; ``-e`` is the source that counts.
``-re``, which clears them for everybody, is never run.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Tuple

from ..core.finding import printable
from ..core.host import ParseError
from ..core.number import whole

STATUS = ("nvidia-smi", "nvlink", "-s")
ERRORS = ("nvidia-smi", "nvlink", "-e")
_GPU = re.compile(r"GPU ([0-9]{1,4}): .*\(UUID: ([^()]{1,80})\)")
_SPEED = re.compile(r"Link ([0-9]{1,3}): (?:<inactive>|([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s)")
_COUNTER = re.compile(r"Link ([0-9]{1,3}): ([A-Za-z][A-Za-z -]{0,60}[A-Za-z]): (\S{1,40})")
# As nvidia-smi names them -> short. What each is worth is in limits.py.
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

# By UUID and number of the link.
Speeds = Mapping[str, Mapping[int, Optional[float]]]
LinkErrors = Mapping[int, Mapping[str, int]]
Errors = Mapping[str, LinkErrors]


def parse_status(text: str) -> Speeds:
    """Return GB/s of each link, None for an inactive one; {} for a GPU without NVLink. Raises ParseError.

    The number of links is not judged here.
    """
    found: Dict[str, Dict[int, Optional[float]]] = {}
    for uuid, lines in _by_gpu(text):
        links = found.setdefault(uuid, {})
        for line in lines:
            match = _SPEED.fullmatch(line)
            if match is None:
                raise ParseError("%s, expected 'Link <n>: <speed> GB/s' or '<inactive>'" % _quote(line))
            links[int(match.group(1))] = None if match.group(2) is None else float(match.group(2))
    return found


def parse_errors(text: str) -> Errors:
    """Return COUNTERS by link; {} for a GPU without NVLink, or whose driver has none. Raises ParseError.

    A counter that is N/A, or unknown to us, is left out, and is not 0.
    """
    found: Dict[str, Dict[int, Dict[str, int]]] = {}
    for uuid, lines in _by_gpu(text):
        links = found.setdefault(uuid, {})
        for line in lines:
            match = _COUNTER.fullmatch(line)
            if match is None:
                # FEC errors by their number, bit error rates, lanes: "FEC Errors - 0: 12", "Raw BER Lane 0: 2061".
                if not re.match(r"Link [0-9]{1,3}: ", line):
                    raise ParseError("%s, expected 'Link <n>: <counter>: <count>'" % _quote(line))
                continue
            name, count = COUNTERS.get(match.group(2)), whole(match.group(3))
            if name is not None and count is not None:
                links.setdefault(int(match.group(1)), {})[name] = count
    return found


def _by_gpu(text: str) -> List[Tuple[str, List[str]]]:
    """Return (UUID, lines below it) of each GPU; no lines for one without NVLink."""
    blocks: List[Tuple[str, List[str]]] = []
    for line in (line.strip() for line in text.splitlines()):
        head = _GPU.fullmatch(line)
        if head is not None:
            blocks.append((printable(head.group(2)), []))
        elif not line or _is_without(line):
            continue
        elif not blocks:
            raise ParseError("%s, expected 'GPU 0: <name> (UUID: <uuid>)'" % _quote(line))
        else:
            blocks[-1][1].append(line)
    return blocks


def has_no_nvlink(text: str) -> bool:
    """Return whether all boards of the output are without NVLink, whatever code the tool ends with then."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_is_without(line) for line in lines if not _GPU.fullmatch(line))


def _is_without(line: str) -> bool:
    said = line.lower()
    return said.startswith("device does not have or support nvlink") or (
        said.startswith("nvml:") and ("not supported" in said or "all links are inactive" in said)
    )


def _quote(line: str) -> str:
    return repr(line[:100])
