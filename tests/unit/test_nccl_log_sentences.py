# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""No sentence of ``busbar diagnose`` has an empty part, whatever of a log's lines is cut off."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, shown

from tests import readings

LOGS = sorted((readings.FOLDER / "nccl_log.report.parse").glob("*.txt"))
# Where nothing stands between two words, or behind a colon.
EMPTY = re.compile(
    r"\b(?:as|on|of|by|says|at|to|from|is|and|with)  |\b(?:on|of|by|at|as) ?[;,)]| ,|: ?(?:;|$)|\(\)|^, |; ;"
)
QUOTED = re.compile(r"the program reports|line \d|\|")
HEAD = re.compile(r"[\w.-]{1,80}:(\d{1,8}:\d{1,8} \[)")


def sentences(text: str) -> list[str]:
    log = job.read([text.encode()])
    said = [finding.have or "" for finding in judge.judge(log)]
    for number, one in enumerate(jobs.split(log)):
        said += shown.shown(log, one, number == 0) + shown.not_shown(log, one, number == 0)
    return [one for one in said if not QUOTED.search(one)]


CUTS: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: text,
    "host": lambda text: HEAD.sub(r":\1", text),
    "some hosts": lambda text: "\n".join(
        HEAD.sub(r":\1", line) if n % 2 else line for n, line in enumerate(text.split("\n"))
    ),
    "process": lambda text: re.sub(r"[\w.-]{1,80}:\d{1,8}:\d{1,8} \[", "[", text),
    "ends": lambda text: "\n".join(line[: 3 * len(line) // 4] for line in text.split("\n")),
}


# What the logs above do not have.
MORE = """\
n1:7:8 [0] NCCL INFO cudaDriverVersion 13000
n1:7:8 [0] NCCL INFO NCCL version 2.28.3+cuda13.0
n2:9:9 [0] NCCL INFO Bootstrap: Using docker0:172.17.0.2<0>
n2:9:9 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 4.
n1:7:8 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 8.
n2:9:9 [0] NCCL INFO NET/OFI Running on Default platform
n2:9:9 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.14.0
n2:9:9 [0] NCCL INFO NET/OFI No eligible providers were found
n2:9:9 [0] NCCL INFO Failed to initialize NET plugin SPCX
n2:9:9 [0] NCCL INFO NET/IB : No device found.
n2:9:9 [0] NCCL INFO NET/Socket : Using [0]tun0:10.8.0.2<0>
n2:9:9 [0] NCCL INFO Using network Socket
n1:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB tun0:10.0.0.1<0>
n1:7:8 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] via SHM/direct/direct
n1:7:8 [0] NCCL INFO Using network IB
n1:7:8 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer
n2:9:9 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer
"""


def test_nor_of_what_is_told_of_networks_and_plugins() -> None:
    for cut in CUTS.values():
        assert [one for one in sentences(cut(MORE)) if EMPTY.search(one)] == []
    two = "".join(f"{one} [0] NCCL INFO Bootstrap: Using eth0:10.0.0.2<0>\n" for one in ("n1:7:8", "n2:9:9"))
    releases = two + "[0] NCCL INFO NCCL version 2.28.3+cuda13.0\n"
    assert "2.28.3, according to a host that is not named; n1, n2: no release" in sentences(releases)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_no_part_of_a_sentence_is_empty(log: Path, cut: str) -> None:
    assert [one for one in sentences(CUTS[cut](log.read_text(errors="replace"))) if EMPTY.search(one)] == []
