# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare ``nvidia-smi topo -m`` with the paths between GPUs and NICs that sysfs shows.

Paths are derived from sysfs (pci.py). This matrix is only a cross-check: it is text for people, its shape changes with
the driver, and it names NICs by number.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..core.host import Host, ParseError
from .topology import Topology, is_far_for_want_of_numa

COMMAND = ("nvidia-smi", "topo", "-m")

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LABEL = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]*$")
_GPU = re.compile(r"^GPU[0-9]+$")
_NUMBERED_NIC = re.compile(r"^NIC[0-9]+$")
_CELL = re.compile(r"^(?:X|NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS)$")
# First words of "CPU Affinity", "NUMA Affinity" and "GPU NUMA ID": the devices end there.
_NOT_A_DEVICE = ("CPU", "NUMA", "GPU")


class TopoMatrix(NamedTuple):
    gpus: Tuple[str, ...]  # GPU0, GPU1, ...
    nics: Dict[str, Optional[str]]  # NIC0 or mlx5_0 -> RDMA device; None where no legend names it
    cells: Dict[Tuple[str, str], str]  # (row, column) -> X, NV18, PIX, PXB, PHB, NODE or SYS


def parse(text: str) -> TopoMatrix:
    """Parse the matrix. Columns are separated by TABs or blanks: device cells are never empty and hold no blank."""
    lines = [line.split() for line in _ANSI.sub("", text).splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if _is_row(line)), None)
    if start is None:
        raise ParseError("no row of a matrix in %r" % text.strip()[:100])
    labels = _labels(lines[:start])
    rows, rest = lines[start : start + len(labels)], lines[start + len(labels) :]
    if [row[0] for row in rows] != labels or any(map(_is_row, rest)):
        raise ParseError("expected one row for each of the columns %s" % _quote(labels))
    cells: Dict[Tuple[str, str], str] = {}
    for label, *row in rows:
        for column, cell in zip(labels, row + [""] * len(labels)):
            if not _CELL.match(cell) or (cell == "X") != (column == label):
                raise ParseError("%r cannot be the path from %s to %s in %s" % (cell[:40], label, column, _quote(row)))
            cells[label, column] = cell
    legend = {
        line[0][:-1]: line[1] for line in rest if len(line) == 2 and line[0].endswith(":") and _LABEL.match(line[1])
    }
    gpus, nics = ([label for label in labels if bool(_GPU.match(label)) is is_gpu] for is_gpu in (True, False))
    names = {label: legend.get(label) if _NUMBERED_NIC.match(label) else label for label in nics}
    return TopoMatrix(tuple(gpus), names, cells)


def _is_row(line: List[str]) -> bool:
    return len(line) > 1 and _CELL.match(line[1]) is not None


def _labels(header: List[List[str]]) -> List[str]:
    """Column labels; the header may be wrapped over several lines."""
    labels: List[str] = []
    for word in (word for line in header for word in line):
        if word in _NOT_A_DEVICE:
            break
        if not _LABEL.match(word):
            raise ParseError("%r cannot be a column in the header %s" % (word[:40], _quote(header[0])))
        labels.append(word)
    if not labels or not _GPU.match(labels[0]) or len(set(labels)) < len(labels):
        raise ParseError("expected a header of different columns that begins with a GPU, got %s" % _quote(labels))
    return labels


def _quote(words: List[str]) -> str:
    return repr(" ".join(words)[:100])


def read(host: Host) -> TopoMatrix:
    """Run nvidia-smi. Raises ReadError if it fails, ParseError if the output is not a matrix."""
    return parse(host.query(COMMAND))


def lost(matrix: TopoMatrix, topology: Topology) -> List[str]:
    """Return the RDMA devices that nvidia-smi lists and sysfs does not have."""
    known = {device.name for device in topology.software_rdma}
    known.update(nic.rdma.name for nic in topology.nics if nic.rdma is not None)
    return [name for name in matrix.nics.values() if name is not None and name not in known]


def disagreements(matrix: TopoMatrix, topology: Topology) -> List[str]:
    """Return one sentence for each difference between nvidia-smi and sysfs."""
    # nvidia-smi numbers the GPUs that the driver has.
    gpus = [gpu for gpu in topology.gpus if gpu.in_driver]
    nics = {nic.rdma.name: nic for nic in topology.nics if nic.rdma is not None}
    found = ["%s: nvidia-smi topo -m lists it, sysfs has no such RDMA device" % name for name in lost(matrix, topology)]
    unnamed = [label for label, name in matrix.nics.items() if name is None]
    found += ["%s: nvidia-smi topo -m does not name its RDMA device" % label for label in unnamed]
    if len(matrix.gpus) != len(topology.gpus):
        found[:0] = ["nvidia-smi topo -m lists %d GPUs, sysfs has %d" % (len(matrix.gpus), len(topology.gpus))]
    if len(matrix.gpus) != len(gpus):
        return found  # which GPU is which is not known then
    for label, gpu in zip(matrix.gpus, gpus):
        subject = "%s %s" % (label, gpu.pci)
        for nic_label, name in matrix.nics.items():
            nic, cell = nics.get(name or ""), matrix.cells[label, nic_label]
            have = topology.paths.get((gpu.pci, nic.pci)) if nic else None
            unsure = nic is not None and cell == "NODE" and is_far_for_want_of_numa(topology, gpu, nic)
            if have is not None and cell != have and not unsure:
                found.append("%s - %s: nvidia-smi topo -m reports %s, sysfs reports %s" % (subject, name, cell, have))
        peers = [matrix.cells[label, peer] for peer in matrix.gpus if peer != label]
        counts = [int(cell[2:]) if cell.startswith("NV") else 0 for cell in peers]
        # Through NVSwitch every cell is the GPU's whole count, cabled directly the cells add up to it.
        if peers and gpu.nvlinks_active is not None and gpu.nvlinks_active not in (max(counts), sum(counts)):
            text = "%s: nvidia-smi topo -m reports %d NVLinks, nvidia-smi nvlink -s reports %d"
            found.append(text % (subject, max(counts), gpu.nvlinks_active))
    return found
