# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Devices and platforms that have no GPUDirect RDMA at all: no module that is loaded changes that."""

from __future__ import annotations

import re
from typing import AbstractSet

# Soft-RoCE and soft iWARP, by the names that their devices have usually.
_SOFTWARE = re.compile(r"^(?:rxe|siw)(?:_?\d|_\w)")
# Omni-Path.
_OPA = re.compile(r"^(?:hfi1|opa)_?\d")
_SHARED = re.compile(r"\bGB10\b|DGX Spark")

WHY = "without GPUDirect RDMA every byte goes through host memory; this platform has no other path"
FIX = "nothing on this device or platform: no module helps; if another HCA is intended, name it in NCCL_IB_HCA"


def likely(device: str, gpus: AbstractSet[str]) -> str:
    """Why a device has none, as far as names tell; "" where it may have it. gpus: models that the log names."""
    if all(_SOFTWARE.match(part) for part in device.split("+")):
        return "a software device by its name (Soft-RoCE, soft iWARP), which usually cannot do it"
    if all(_OPA.match(part) for part in device.split("+")):
        return "an Omni-Path device by its name, which over verbs (NET/IB) usually has none"
    if gpus and all(_SHARED.search(gpu) for gpu in gpus):
        return "the GPUs are GB10 (DGX Spark), whose GPU and CPU share one memory: the platform does not support it"
    return ""
