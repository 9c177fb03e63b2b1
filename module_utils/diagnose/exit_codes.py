# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read how a process ended from a launcher's words: a signal or an exit code."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "SEGV": 11, "PIPE": 13,
    "TERM": 15, "Segmentation fault": 11, "Segfault": 11, "Bus error": 7, "Aborted": 6, "Killed": 9,
    "Illegal instruction": 4, "Floating point exception": 8, "Terminated": 15, "Interrupt": 2, "killed": 9,
    "terminate called": 6,
}  # fmt: skip
_SIGNAL_NAME = re.compile(r"(?:SIG|\b)(%s)\b" % "|".join(_SIGNALS))
_NUMBER = re.compile(r"-?\d{1,5}")


def exit_code(fields: Dict[str, Any]) -> str:
    """Return ``signal 9`` or ``exit code 1`` of the groups of a launcher's line; "" of exit code 0."""
    words = str(fields.get("code") or fields.get("word") or fields.get("name") or "")
    if fields.get("octal"):
        number: Optional[int] = int(fields["octal"], 8)
    else:
        digits = next((fields[key] for key in fields if key.startswith(("signal", "code")) and key != "code"), None)
        match = _NUMBER.search(digits or words)
        number = None if match is None else int(match.group())
        if number is not None and ("ignal" in words or any(key.startswith("signal") for key in fields)):
            return "signal %d" % number
        named = _SIGNAL_NAME.search(words)
        if named is not None and number is None:
            return "signal %d" % _SIGNALS[named.group(1)]
    if number is None:
        return words[:40]
    signal = -number if number < 0 else number - 128
    if 0 < signal < 32:
        return "signal %d" % signal
    return "exit code %d" % number if number else ""
