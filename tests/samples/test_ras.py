# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What RAS of NCCL 2.28.9 has answered while a job of one rank ran on an H200, asked by hand."""

import re
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.nccl import ras_answer
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.ras_answer import Place, Row

# Lines that the client has printed beside the answer.
CLIENT = re.compile(r"^(b'.*'|== .*)\n", re.MULTILINE)


def test_json_of_a_job_of_one_rank(samples: Path) -> None:
    found = ras_answer.parse_json(CLIENT.sub("", (samples / "h200x1/ras-json.txt").read_text()))
    assert (found.form, found.version, found.timeouts) == ("json", "2.28.9", 0)
    [one] = found.communicators
    assert one.name == "0xa982ee6e1e529f6:0x90e9d0da766ec128:0x11ceca577eb9ce4a"
    assert (one.size, one.missing, one.errors) == (1, (), ())
    assert one.places == {0: Place("192.0.2.2", 1201, 0, 0)}
    assert [(group.value, group.ranks) for group in one.statuses] == [("RUNNING", (0,))]
    names = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
    assert one.launched == {0: dict.fromkeys(names, 0)}


def test_text_of_the_same_job_also_verbose(samples: Path) -> None:
    captured = (samples / "h200x1/ras-text.txt").read_text()
    parts = [CLIENT.sub("", part) for part in re.split(r"^(?=== )", captured, flags=re.MULTILINE) if part]
    assert len(parts) == 2
    for part in parts:
        found = ras_answer.parse_text(part)
        assert (found.form, found.version, found.processes) == ("text", "2.28.9", 1)
        assert found.rows == (Row(1, 1, "RUNNING", "OK"),)
        assert (found.communicators, found.absent) == ((), ())
