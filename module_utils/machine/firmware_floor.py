# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Know the oldest NIC firmware without the vulnerabilities of NVIDIA's security bulletins.

A version is FAMILY.TRAIN.BUILD; each train (a branch, such as 43 for LTS 2024) has its own first good build.
Sources: NVIDIA security bulletins 5699 (2026-06-30, CVE-2025-23350, -23351) and 5847 (2026-09-29, CVE-2025-33207).
"""

from __future__ import annotations

import re
from typing import Dict, Optional

SOURCE = "NVIDIA security bulletins 5699 and 5847, 2026-09-29"
_LTS = {35: 8002, 39: 8002, 43: 8002}
_GA = {**_LTS, 46: 3008}
_LATER = {**_LTS, 47: 1020}  # bulletin 5847 wants more of these than 46.3008
# Family -> train -> first good build. ConnectX-4 is 12, 4 Lx 14, 5 16, 6 20, 6 Dx and DE 22, 6 Lx 26, 7 28, 8 40;
# BlueField-2 is 24, BlueField-3 32.
_FLOORS: Dict[int, Dict[int, int]] = {12: {28: 4702}, 14: {32: 1908}, 16: {35: 8008}, 20: _LTS, 28: _GA, 40: {46: 3008}}
_FLOORS.update({32: {39: 8002, 43: 8002, 46: 3008}, **dict.fromkeys((22, 24, 26), _LATER)})


def below(version: Optional[str]) -> Optional[str]:
    """Return the version that a firmware has to reach, where it is older; None where it is not, or not known."""
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,5})", version or "")
    if match is None:
        return None
    family, train, build = map(int, match.groups())
    floors = _FLOORS.get(family, {})
    # A train that is not listed is affected up to the next that is; what comes after all of them is not judged.
    first = next((number for number in sorted(floors) if number >= train), None)
    if first is None or (first == train and build >= floors[first]):
        return None
    return "%d.%d.%d" % (family, first, floors[first])
