# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The topology that a process printed (NCCL_DEBUG_SUBSYS=GRAPH): its tree of devices, the paths, what it searched.

NCCL's numbers of CPUs and patterns are those of its include/graph.h; bandwidths are in GB/s, as NCCL counts them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

# Processes whose topology is kept, and names of each kind.
PROCESSES, NAMES = 64, 64
_DEVICE = r"(?P<kind>GPU|NIC|PCI|CPU|NVS|NET|DEV)/(?P<name>[0-9A-Fa-f-]{1,40})"
_LINK = re.compile(r" *\+ (?P<link>[A-Z0-9]{2,6})\[(?P<bw>[\d.]{1,16})\] - " + _DEVICE)
_CPU = re.compile(r"CPU/(?P<name>[0-9A-Fa-f-]{1,40}) \((?P<arch>\d{1,3})/(?P<vendor>\d{1,3})/(?P<model>-?\d{1,3})\)")
_SYSTEM = re.compile(r"=== System : max(?:Bw|Width) (?P<most>[\d.]{1,16}) total(?:Bw|Width) (?P<total>[\d.]{1,16})")
_FROM = re.compile(r"(?P<kind>GPU|NET|NVS|NIC)/(?P<name>[0-9A-Fa-f-]{1,40}) :")
_TO = re.compile(
    r"(?P<kind>GPU|NET)/(?P<name>[0-9A-Fa-f-]{1,40}) ?\((?P<hops>\d{1,3})/(?P<bw>[\d.]{1,16})/(?P<how>[A-Z0-9]{2,4})\)"
)
_SEARCH = re.compile(
    r"Pattern (?P<pattern>\d{1,2}), crossNic (?P<cross>\d), nChannels (?P<channels>\d{1,4}), "
    r"(?:bw|speed) (?P<intra>[\d.]{1,16})/(?P<inter>[\d.]{1,16}), type (?P<within>\w{1,8})/(?P<between>\w{1,8})"
)
_ARCHES = {"1": "x86", "2": "POWER", "3": "ARM"}
_VENDORS = {"1": "Intel", "2": "AMD", "3": "Zhaoxin"}
_PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "NVLS", 6: "CollNet"}
# Numbers that stand for "no limit" and "the same device".
_ENDLESS = 4000.0
# First four characters of such lines.
STARTS = (
    *(b"+ PC", b"+ SY", b"+ NE", b"+ NV", b"+ XG", b"+ LO", b"+ C2", b"    ", b"=== ", b"Patt"),
    *(b"CPU/", b"GPU/", b"NET/", b"NVS/"),
)


@dataclass
class Topology:
    """most, total: GB/s of the best path and of all links of a GPU, as NCCL says.   cpus: name -> what it is.

    links: (link, kind of its far end) -> GB/s -> names there.   nets: name -> GB/s.
    paths: (kind, kind) -> (way, GB/s).   nearest: GPU -> (hops, GB/s, way) -> NETs.   searched: pattern -> in words.
    """

    most: float = 0.0
    total: float = 0.0
    cpus: Dict[str, str] = field(default_factory=dict)
    links: Dict[Tuple[str, str], Dict[float, Set[str]]] = field(default_factory=dict)
    nets: Dict[str, float] = field(default_factory=dict)
    paths: Dict[Tuple[str, str], Set[Tuple[str, float]]] = field(default_factory=dict)
    nearest: Dict[str, Tuple[int, float, str, Set[str]]] = field(default_factory=dict)
    searched: Dict[int, str] = field(default_factory=dict)

    def line(self, text: str) -> bool:
        """Takes a line; whether it is one of a topology."""
        if text[:4] == "Patt":
            return self._search(text)
        if text[:4] == "=== ":
            match = _SYSTEM.match(text)
            if match is not None:
                self.most, self.total = _number(match.group("most")), _number(match.group("total"))
            return match is not None
        if text[:4] == "CPU/":
            match = _CPU.match(text)
            if match is not None and len(self.cpus) < NAMES:
                arch, vendor = match.group("arch"), match.group("vendor")
                self.cpus[match.group("name")] = " ".join(
                    part for part in (_VENDORS.get(vendor, "") if arch == "1" else "", _ARCHES.get(arch, "")) if part
                )
            return match is not None
        match = _LINK.match(text)
        if match is None:
            return self._path(text)
        bandwidth, kind, name = _number(match.group("bw")), match.group("kind"), match.group("name")
        if match.group("link") == "NET":
            if len(self.nets) < NAMES:
                self.nets[name] = bandwidth
            return True
        there = self.links.setdefault((match.group("link"), kind), {})
        if len(there) < NAMES:
            names = there.setdefault(bandwidth, set())
            if len(names) < NAMES:
                names.add(name)
        return True

    def _search(self, text: str) -> bool:
        match = _SEARCH.match(text)
        if match is None:
            return False
        pattern = int(match.group("pattern"))
        self.searched[pattern] = "%s: %s channel%s of %g GB/s in the node (%s) and %g to others (%s)%s" % (
            _PATTERNS.get(pattern, "pattern %d" % pattern),
            match.group("channels"),
            "" if match.group("channels") == "1" else "s",
            _number(match.group("intra")),
            match.group("within"),
            _number(match.group("inter")),
            match.group("between"),
            "" if match.group("cross") == "0" else ", crossNic %s" % match.group("cross"),
        )
        return True

    def _path(self, text: str) -> bool:
        match = _FROM.match(text)
        if match is None:
            return False
        kind, own = match.group("kind"), match.group("name")
        for to in _TO.finditer(text, match.end()):
            how, bandwidth, other = to.group("how"), _number(to.group("bw")), to.group("name")
            if (kind, own) == (to.group("kind"), other) or {kind, to.group("kind")} == {"NET"}:
                continue
            first, second = sorted((kind, to.group("kind")))
            ways = self.paths.setdefault((first, second), set())
            if len(ways) < NAMES:
                ways.add((how, bandwidth))
            if (kind, to.group("kind")) == ("GPU", "NET"):
                # Such a line has all NICs; those of NICs may be cut.
                self._near(own, other, int(to.group("hops")), bandwidth, how)
        return True

    def _near(self, gpu: str, net: str, hops: int, bandwidth: float, how: str) -> None:
        before = self.nearest.get(gpu)
        if before is None or (hops, -bandwidth) < (before[0], -before[1]):
            if before is not None or len(self.nearest) < NAMES:
                self.nearest[gpu] = hops, bandwidth, how, {net}
        elif (hops, bandwidth) == before[:2]:
            before[3].add(net)

    def told(self) -> List[str]:
        """What it says, in parts of a sentence."""
        said = []
        if self.most:
            total = " and %g GB/s over all of its links" % self.total if self.total not in (0.0, self.most) else ""
            endless = self.most >= _ENDLESS
            said.append("%s from a GPU%s (maxBw, totalBw)" % (
                "no limit" if endless else "at most %g GB/s" % self.most, total,
            ))  # fmt: skip
        if self.cpus:
            kinds = sorted(set(self.cpus.values()) - {""})
            said.append("%d CPU node%s%s" % (
                len(self.cpus), "" if len(self.cpus) == 1 else "s", " (%s)" % ", ".join(kinds) if kinds else "",
            ))  # fmt: skip
        between = [bandwidth for (link, _kind), there in self.links.items() if link == "SYS" for bandwidth in there]
        if between:
            said.append("between CPUs %s" % _span(between))
        for kind, what in (("GPU", "GPUs"), ("NIC", "NICs"), ("PCI", "PCIe switches")):
            there = self.links.get(("PCI", kind), {})
            if there:
                said.append("PCIe to %s %s" % (what, "; ".join(
                    "%s (%s)" % (_rate(bandwidth), _names(names)) for bandwidth, names in sorted(there.items())[:3]
                )))  # fmt: skip
        for (link, kind), there in sorted(self.links.items()):
            if link in ("XGMI", "C2C"):
                said.append("%s to %s %s" % (link, kind, _span(list(there))))
        if self.nets:
            of: Dict[float, Set[str]] = {}
            for name, bandwidth in self.nets.items():
                of.setdefault(bandwidth, set()).add("NET/" + name)
            said += [
                "%d NIC%s of %s (%s)" % (len(nets), "" if len(nets) == 1 else "s", _rate(bandwidth), _names(nets))
                for bandwidth, nets in sorted(of.items())[:4]
            ]
        for pair, what in ((("GPU", "GPU"), "GPU to GPU"), (("GPU", "NET"), "GPU to NIC")):
            ways: Dict[str, List[float]] = {}
            for how, bandwidth in self.paths.get(pair, ()):
                ways.setdefault(how, []).append(bandwidth)
            if ways:
                said.append("paths from %s: %s" % (what, ", ".join(
                    "%s (%s)" % (how, _span(found)) for how, found in sorted(ways.items())
                )))  # fmt: skip
        near: Dict[str, Set[str]] = {}
        for gpu, (_hops, _bandwidth, how, nets) in self.nearest.items():
            near.setdefault("%s by %s" % (_names({"NET/" + one for one in nets}), how), set()).add(gpu)
        if near:
            said.append("the nearest NICs: %s" % ", ".join(
                "of %s %s" % (_names({"GPU/" + gpu for gpu in gpus}), what)
                for what, gpus in sorted(near.items(), key=_order)[:8]
            ))  # fmt: skip
        said += [text for _pattern, text in sorted(self.searched.items(), key=lambda one: (one[0] != 4, one[0]))]
        return said


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _rate(bandwidth: float) -> str:
    return "without a known limit" if bandwidth >= _ENDLESS else "%g GB/s" % bandwidth


def _span(found: List[float]) -> str:
    low, high = min(found), max(found)
    if low == high or high >= _ENDLESS:
        return _rate(low)
    return "%g to %g GB/s" % (low, high)


def _names(names: Set[str]) -> str:
    listed = sorted(names, key=lambda name: (len(name), name))
    return ", ".join(listed[:4]) + (" and %d more" % (len(listed) - 4) if len(listed) > 4 else "")


def _order(one: Tuple[str, object]) -> str:
    return one[0]
