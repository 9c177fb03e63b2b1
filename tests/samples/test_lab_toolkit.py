# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's nccl-tests beside real captures: the same layout, and figures near those that it was calibrated with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import nvidia_smi, tree
from lab.machines import h200_vm
from lab.nccl_tests import TOOLKIT


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
