# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limits of a GPU's counters between two runs, each with its source.

"own" is this suite's choice if no limit is published.
"""

from __future__ import annotations

from typing import Mapping

DAY = 86400.0
# Corrected ECC errors a day. AzNHC tolerates 20,000,000 of DRAM and 10,000 of SRAM in all; a day is own.
CORRECTED: Mapping[str, int] = {"dram_correctable": 20_000_000, "sram_correctable": 10_000}
# Rows remapped for uncorrectable errors, at which DCGM fails a GPU.
ROWS = 512
# Retired pages of both kinds at which DCGM fails a GPU, and from which it does if more are added every week; pages of
# double bit errors at which facebookresearch/gcm fails it.
RETIRED, RETIRED_MANY, RETIRED_DOUBLE = 60, 15, 10
# Share of the time that a reason has held the clocks down. DCGM's watch of the power brake was raised on 69 % of 288
# healthy nodes (NVIDIA/NVSentinel#1666), most for moments; a real one lasted 36 hours. The share is own.
SLOWED: Mapping[str, float] = {
    "hw_thermal_slowdown": 0.01,
    "hw_power_brake_slowdown": 0.01,
    "sw_thermal_slowdown": 0.05,
}
# PCIe replays a minute at 16 lanes by generation: what a bit error rate of 1e-12 allows (DCGM).
REPLAYS: Mapping[int, float] = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 31.0, 6: 62.0}
# CRC errors a second on one NVLink, at which DCGM fails; fewer are a warning.
CRC_PER_SECOND = 100.0
# Recoveries of one GPU's NVLinks in a day. Of 320 GPUs the one that failed five days later had 505, the others together
# 145 (marin-community/marin#9086): less than one each. From here on it is no chance; own.
RECOVERIES = 10
# Corrected AER errors a second, at which DCGM's diagnosis fails: 480 in 15 minutes.
AER_CORRECTABLE = 480 / 900.0
# GB/s of an NVLink, at least, by architecture: 25 (NVLink 3), 26.562 (4), 53.125 (5; 50 by older drivers).
NVLINK_GBPS: Mapping[str, float] = {"Ampere": 25.0, "Hopper": 26.5, "Blackwell": 50.0}
# Boots in which a GPU was in trouble, of the record's history, from which on it is to be replaced: gpud says after two
# reboots. Days that the history goes back; own.
BOOTS, HISTORY = 3, 30 * DAY
# Seconds for which an Xid counts if there is no earlier record.
WINDOW = DAY
