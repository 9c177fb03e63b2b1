# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What INFO lines, PyTorch's watchdog and lines without a head say beside networks and failures."""

from __future__ import annotations

import re

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import events, job, judge, notes, texts


def found(text: str) -> dict[str, Finding]:
    """Check -> its finding that is not ok, the worst of several."""
    result: dict[str, Finding] = {}
    for finding in judge.judge(job.read([text.encode()])):
        if not finding.ok:
            result.setdefault(finding.check, finding)
    return result


def info(text: str, who: str = "n1:7:8 [0]") -> str:
    return f"{who} NCCL INFO {text}\n"


def test_every_note_has_its_groups_and_no_other_line_is_one() -> None:
    for _keys, pattern, kind, sentence in notes.NOTES:
        assert re.compile(pattern).groups >= len(re.findall(r"\{\d", sentence))
        assert kind in (
            "harmless",
            "fallback",
            "odd",
            "fact",
            "closed",
            "older",
            "collnet",
            "plugin_set",
            "matrix",
            "last_words",
            "host_memory",
        )
    assert not isinstance(texts.event("NET/IB : No device found."), events.Note)
    assert texts.event("MNNVL 0 cliqueId 0 cliqueSize 1 cliqueRank 0") is None
    fabric = texts.event("MNNVL busId 0x901000 fabric UUID 1f.2e cliqueId 0x7ffe state 3 healthMask 0x1aa")
    assert fabric == events.Fabric("1f.2e", "0x7ffe", 3)


def test_releases_by_the_form_of_lines() -> None:
    old = info("NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file", "n1:7:8 [0]")
    new = info("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", "n2:9:9 [0]")
    have = found(old + new)["nccl_log.version"].have or ""
    assert "lines of n1:7 have the form of NCCL before 2.21, those of n2:9 that of 2.22 or later" in have
    assert "nccl_log.version" not in found(new + new.replace("n2:9", "n1:7"))
    signed = info("NCCL version 2.27.5+cuda12.9", "n2:9:9 [0]")
    assert "of 2.27 or later; only 2.27.5 is named" in (found(old + signed)["nccl_log.version"].have or "")
