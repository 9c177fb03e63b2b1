# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's mlnx_qos and ibv_devinfo beside captured ones: the same lines, whatever the figures in them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from lab import roce, tree
from lab.machines import hgx_h200_roce
from lab.toolkit.roce_tools import PLACES

RAIL0 = "enp26s0np0"
NETDEVS = {"ens1np0": RAIL0, "nosuch": "nosuch", "novf": "enp131s0f0v0"}
# Calls in the order in which they were made, on one port.
CALLS = (
    *("01-default-pcp", "02-trust-dscp", "03-pfc3", "04-trust-and-pfc-together", "05-dscp2prio-set"),
    *("06-dscp2prio-del", "07-tsa-tcbw", "09-cable-len", "10-buffer", "11-dcbx-get", "12-dcbx-fw"),
    *("13-dcbx-os", "16-trust-pcp", "17-two-prios-one-tc"),
)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    machine = hgx_h200_roce("node02")
    tree.write_hardware(machine, tmp_path / "hw")
    roce.write_tools(machine, tmp_path / "sys")
    return tmp_path


def run(node: Path, name: str, *words: str) -> tuple[int, str]:
    tool = node / "sys" / PLACES[name].lstrip("/")
    done = subprocess.run([tool, *words], capture_output=True, text=True, timeout=1800, check=False)
    return done.returncode, done.stdout + done.stderr


def buffers_blanked(text: str) -> str:
    """Sizes and places of buffers are the card's own."""
    text = re.sub(r"(?m)^(Receive buffer size \(bytes\): )(\d+,){8}", r"\1", text)
    return re.sub(r"(?m)^(\s+buffer {6})[\d ]+$|(?<=max_buffer_size=)\d+", r"\1", text)


def capture(file: Path) -> tuple[list[str], str, int]:
    """Command, output and exit code of a recorded call."""
    first, _, rest = file.read_text().partition("\n")
    output, _, end = rest.rpartition("[exit ")
    words = [NETDEVS.get(word, word) for word in shlex.split(first)[2:]]
    return words, output, int(end.split("]")[0])


def test_the_same_calls_print_the_same_lines(samples: Path, node: Path) -> None:
    for name in CALLS:
        if name == "16-trust-pcp":  # the call before it, in a form that the lab has
            assert run(node, "mlnx_qos", "-i", RAIL0, "--pfc", ",".join("0" * 8))[0] == 0
        words, expected, code = capture(samples / f"dcb-and-mlnx_qos-synthetic/mlnx_qos-{name}.txt")
        # Set by a call that is left out: nobody sets rates.
        expected = expected.replace("ratelimit: 10.0 Gbps", "ratelimit: unlimited")
        found_code, found = run(node, "mlnx_qos", *words)
        assert (found_code, buffers_blanked(found)) == (code, buffers_blanked(expected)), name


def test_ibv_devinfo_prints_lines_of_the_real_one(samples: Path, node: Path) -> None:
    real_one = (samples / "ib/ibv_devinfo-cx6-active.txt").read_text()
    code, found = run(node, "ibv_devinfo", "-d", "mlx5_6")
    lines = [re.sub(r"(:\t+).*", r"\1", line) for line in found.rstrip().splitlines()]
    real_lines = [re.sub(r"(:\t+).*", r"\1", line) for line in real_one.rstrip().splitlines()]
    assert (code, lines) == (0, [line for line in real_lines if line in lines])
