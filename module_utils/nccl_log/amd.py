# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Findings in the words of AMD's tools: RCCL's lines are NCCL's, call HIP's errors CUDA's, and its GPUs know no Xid."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence, Tuple

from ..core.finding import Finding

_WORDS: Tuple[Tuple[str, str], ...] = (
    ("`nvidia-smi -q` and `dmesg -T | grep -i xid`", "`rocm-smi` and `dmesg -T | grep -i amdgpu`"),
    ("`dmesg -T | grep -i xid`", "`dmesg -T | grep -i amdgpu`"),
    ("no Xid there", "nothing there"),
    ("OOM and Xid", "OOM and amdgpu"),
    ("CUDA_LAUNCH_BLOCKING=1", "HIP_LAUNCH_BLOCKING=1"),
    ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    ("`nvidia-smi topo -p2p r` and `nvidia-smi topo -m`", "`rocm-smi --showtopo`"),
    ("`nvidia-smi topo -m`", "`rocm-smi --showtopo`"),
    ("`nvidia-smi topo -p2p r`", "`rocm-smi --showtopoaccess`"),
    ("`nvidia-smi`", "`rocm-smi`"),
)
# Words of our own in what is found, and why it matters.
_ERRORS: Tuple[Tuple[str, str], ...] = (
    ("is an error of CUDA", "is an error of HIP, which RCCL calls CUDA's"),
    ("a call of CUDA failed", "a call of HIP failed"),
)
TAKE = "rocm-smi for nvidia-smi"


def words(found: Sequence[Finding]) -> List[Finding]:
    """The findings, with AMD's tools in what to do, and its errors."""
    return [
        replace(one, fix=_amds(one.fix, _WORDS), have=_amds(one.have or "", _ERRORS), why=_amds(one.why, _ERRORS))
        for one in found
    ]


def _amds(text: str, words_of: Sequence[Tuple[str, str]]) -> str:
    for nvidias, amds in words_of:
        text = text.replace(nvidias, amds)
    return text
