# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's variables as NCCL finds and reads them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from .options import integer
from .stop import USAGE_ERROR, nccl_failure

# Another directory holds the node only in tests.
ROOT = os.environ.get("BUSBAR_LAB_ROOT", "")

FUNCTIONS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
# NCCL's numbers of paths; a level's own digit means another (the old numbers).
LOC, NVL, PIX, PXB, PHB, SYS = 0, 1, 4, 5, 8, 9
_LEVELS = {"LOC": 0, "NVL": 1, "NVB": 2, "C2C": 3, "PIX": PIX, "PXB": PXB, "P2C": 6, "PXN": 7, "PHB": PHB, "SYS": SYS}
_OLD_LEVELS = (LOC, PIX, PXB, PHB, SYS)


def settings() -> dict[str, str]:
    """The environment, then NCCL_CONF_FILE or the user's file, then /etc/nccl.conf: the first to name it has it."""
    found = dict(os.environ)
    named = found.get("NCCL_CONF_FILE")
    for path in (named or f"{ROOT}{pwd.getpwuid(os.getuid()).pw_dir}/.nccl.conf", f"{ROOT}/etc/nccl.conf"):
        try:
            with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
                lines = stream.read().split("\n")
        except OSError:
            continue
        for line in lines:
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(name[:1023], value[:1023])
    return found


def number(found: Mapping[str, str], name: str, default: int) -> int:
    """Empty is the default, what is no number is 0."""
    return integer(found[name]) if found.get(name) else default


def level(found: Mapping[str, str], name: str, default: int) -> int:
    """The longest path that a level allows; what is no level counts as not set."""
    text = found.get(name, "")
    if text[:1].isdigit():
        return _OLD_LEVELS[min(integer(text), len(_OLD_LEVELS) - 1)]
    return _LEVELS.get(text, default)


def p2p_allowed(found: Mapping[str, str]) -> bool:
    return level(found, "NCCL_P2P_LEVEL", PXB) > LOC and number(found, "NCCL_P2P_DISABLE", 0) != 1


def allowed(text: str, names: tuple[str, ...], function: str) -> set[str]:
    """NCCL_ALGO or NCCL_PROTO: [^]list[;function:[^]list]. Raises Stop: since 2.24 a word it does not know is fatal."""
    chosen = set(names)
    for part in filter(None, text.lower().split(";")):
        where, colon, words = part.rpartition(":")
        exclude, listed = words.startswith("^"), words.lstrip("^").split(",")
        strange = [word for word in listed if word not in names]
        if colon and where not in FUNCTIONS.values():
            strange.insert(0, where)
        if strange:
            raise nccl_failure(USAGE_ERROR, 1615, f'Unrecognized element token "{strange[0]}" when parsing "{text}"')
        if not colon or where == function:
            chosen = set(names) - set(listed) if exclude else set(listed)
    return chosen


def listed(words: str, name: str, port: int = 1) -> bool:
    """Whether [^][=]name[:port],... leaves this device or interface; no list leaves all."""
    if not words:
        return True
    exclude = words.startswith("^")
    whole = words.lstrip("^").startswith("=")
    found = False
    for word in words.lstrip("^").lstrip("=").split(","):
        item, colon, number_ = word.partition(":")
        if item and (name == item if whole else name.startswith(item)):
            found |= not colon or integer(number_) == port
    return found != exclude
