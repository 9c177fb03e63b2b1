# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The strings by which a line is kept from expressions that it cannot match follow from these expressions."""

from __future__ import annotations

import importlib
import re
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import signal_marks, signals

_PARSER: Any = getattr(re, "_parser", None) or importlib.import_module("sre_parse")


def _needs(parsed: Any) -> tuple[str, ...] | None:
    """Strings of which every text that a parsed expression matches has one; None where it needs none."""
    found: list[tuple[str, ...]] = []
    run = ""
    for operation, argument in [*parsed, (None, None)]:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument)
            continue
        if run:
            found.append((run,))
            run = ""
        parts: list[tuple[str, ...] | None] = []
        if name == "SUBPATTERN":
            parts = [_needs(argument[3])]
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] >= 1:
            parts = [_needs(argument[2])]
        elif name == "BRANCH":
            parts = [_needs(one) for one in argument[1]]
        known = [part for part in parts if part is not None]
        if known and len(known) == len(parts):
            found.append(tuple(dict.fromkeys(text for part in known for text in part)))
    return max(found, key=lambda texts: (min(map(len, texts)), -len(texts)), default=None)


def test_marks_of_classes_follow_from_their_expressions() -> None:
    wanted = [_needs(_PARSER.parse(pattern)) for _kind, pattern, _about in signals.ROWS]
    table = "".join("    %r,\n" % (one,) for one in wanted)
    assert list(signal_marks.MARKS) == wanted, "what module_utils/nccl_log/signal_marks.py has to hold:\n%s" % table
