# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's tools beside captured ones: the same lines; figures of nccl-tests near those it was calibrated with."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import nvidia_smi, roce, tree
from lab.machines import h200_vm, hgx_h200_roce
from lab.nccl_tests import TOOLKIT
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


@pytest.fixture
def simulate(tmp_path: Path) -> Any:
    """The model as a program would run it, on the simulated twin of the captured machine: exit code and text."""
    machine = h200_vm()
    tree.write_hardware(machine, tmp_path / "srv/busbar-lab/hw")
    answers = tree.Tree({f"/{name}": text for name, text in nvidia_smi.answers(machine).items()})
    answers.write(tmp_path / "usr/share/busbar-lab/nvidia-smi")

    def call(name: str, words: str, **more: str) -> tuple[int, str]:
        argv = [sys.executable, "-I", str(TOOLKIT / "nccl_tests_model.py"), name, "22809", "22809", "single"]
        argv += [f"/opt/nccl-tests/build/{name}", *words.split()]
        environment = {"PATH": os.environ["PATH"], "BUSBAR_LAB_ROOT": str(tmp_path), "NCCL_NVLS_ENABLE": "0", **more}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return call


def layout(text: str) -> list[str]:
    """Every line but the lab's own first, with its figures blanked, one of each run of equal lines."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(("# simulated", "rc=")):
            continue
        if line.startswith(("#", " ..")):
            line = re.sub(r"(Pid|pid) +\d+|[\da-f]{4}:[\da-f]{2}:[\da-f]{2}|(on|\.\.) +\S+ |\d[\d.]*", "0", line)
        else:
            # In a table every figure ends where its column does, whatever its width.
            line = re.sub(r" *-?\d[\d.]*(?= |$)", lambda match: "0".rjust(len(match[0])), line)
        if found[-1:] != [line]:
            found.append(line)
    return found


@pytest.mark.parametrize(
    ("capture", "words", "variables"),
    [
        ("all_reduce_plain.txt", "-b 8 -e 16G -f 2 -g 8 -n 20 -w 5", {}),
        ("all_reduce_p2p_disabled.txt", "-b 1M -e 1G -f 4 -g 8 -n 5", {"NCCL_P2P_DISABLE": "1"}),
    ],
)
def test_text_is_laid_out_as_the_real_one(
    samples: Path, simulate: Any, capture: str, words: str, variables: dict[str, str]
) -> None:
    real = (samples / "h200x8" / capture).read_text()
    code, text = simulate("all_reduce_perf", words, **variables)
    assert code == int(re.findall(r"rc=(\d+)", real)[-1])
    assert layout(text) == layout(real)
    sizes = [
        [line.split()[:5] for line in t.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
        for t in (text, real)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_largest_size_is_near_the_real_ones_figure(samples: Path, simulate: Any, collective: str) -> None:
    """With that the lab was calibrated: it is plausible, and no figure of any machine."""
    real = json.loads((samples / f"h200x8/{collective}.json").read_text())["results"][-1]
    code, text = simulate(f"{collective}_perf", f"-b {real['size']} -e {real['size']} -g 8")
    assert (code, text.startswith("# simulated")) == (0, True)
    [row] = [line.split() for line in text.splitlines() if line.split()[:1] == [str(real["size"])]]
    assert float(row[7]) == pytest.approx(real["out_of_place"]["bus_bw"], rel=0.05)
