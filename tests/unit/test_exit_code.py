# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one set of exit codes: which of several results decides, and what each command ends with."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import exit_code

from busbar import cli
from tests import goldens

FILES = {
    "good.conf": "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_SOCKET_IFNAME==eno1\n",
    "faulty.conf": "NCCL_IB_HCA = mlx5_0\nNCCL_DEBUGG=INFO\n",
    "failed.log": "n1:7:8 [0] ibvwrap.cc:1 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory\n",
    "short.log": "n1:7:8 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n",
    "words.txt": "It is raining.\n",
    "empty": "",
    "object.json": "{}",
    "not.json": "{",
    "bytes": "\0\1\2",
}
# Arguments of a command that reaches no node; {} stands for each of FILES and for a file that is missing.
LINES = [
    *("lint {}", "lint --as sbatch {}", "lint good.conf {}", "lint -v {}"),
    *("diagnose {}", "diagnose --json {}", "diagnose --all failed.log {}"),
    *("benchmark {}", "benchmark {} --against {}", "benchmark object.json --against {}"),
    *("report --history {}", "report --run 7 --history {}"),
    *("certify {}", "certify {} --answers {}", "fabric plan {}", "watch --last --store {}"),
    *("remediate object.json -i missing --check",),
    "capture --unpack {} -o new",
    *("hang node07 -i missing", "gate -i missing", "measure -i missing --check"),
    *("drift -i missing", "drift -i not.json"),
    *("kubernetes --node n --state {} --check", "kubernetes --node n --token-file {} --check"),
]
SIZE = "size --parameters {} --profile {} --nodes {}"
SIZES = [SIZE.format(*words) for words in (("70B", "hgx-h100", 16), ("1X", "hgx-h100", 16), ("70B", "none", 16))]
SIZES += [SIZE.format("70B", "hgx-h100", number) for number in (0, -1, "x", 10**9)]


# They read, or watch, this machine.
LOCAL = ("check", "watch", "capture")
CODES = {"": 0, "ok": 0, "ok unknown": 3, "unknown drift": 2, "withheld": 2, "unsupported": 2, "not_owned": 2}


@pytest.mark.parametrize("states", CODES)
def test_findings_come_before_what_is_not_judged(states: str) -> None:
    assert exit_code.of_states(states.split()) == CODES[states]


@pytest.mark.parametrize(("codes", "code"), [([0, 3], 3), ([3, 2, 0], 2), ([2, 1], 1), ([0], 0), ([], 3)])
def test_the_worst_result_decides(codes: list[int], code: int) -> None:
    assert exit_code.worst(codes) == code


def code_of(words: list[str]) -> int:
    try:
        return cli.main(words) or 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1


@pytest.mark.golden
@pytest.mark.parametrize("command", cli.COMMANDS)
def test_what_a_command_ends_with(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    files = [*FILES, "missing", "."]
    lines = ["", "--help", "--no-such-option", *(line.partition(" ")[2] for line in SIZES if command == "size")]
    lines += [
        line.partition(" ")[2].replace("{}", file)
        for line in LINES
        if line.split()[0] == command
        for file in (files if "{}" in line else files[:1])
    ]
    rows = [[line, code_of(f"{command} {line}".split())] for line in lines if line or command not in LOCAL]
    goldens.check("exit_codes", command, rows)
