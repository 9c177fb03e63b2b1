# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's nccl-tests on rendered nodes. All is simulated; roles nccl_tests and nccl_benchmark build and run them."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import nvidia_smi, tree
from lab.faults import FAULTS
from lab.machine import Machine
from lab.machines import hgx_h100
from lab.nccl_tests import COMMIT, TOOLKIT
from lab.toolkit.nccl_model import node as model
from tests.lab.transcript import Transcript, scripts
from tests.trees import put

FIRST_LINE = "# simulated by the Busbar lab: no figure below is a measurement"
HOME = pwd.getpwuid(os.getuid()).pw_dir.lstrip("/")


def test_the_commit_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    """If this fails because the sources have changed: write the commit it names to lab/nccl_tests.py."""
    for number, strange in enumerate(({}, {"GIT_AUTHOR_NAME": "x", "GIT_DEFAULT_HASH": "sha256", "TZ": "Asia/Tokyo"})):
        root = tmp_path / str(number)
        argv = ["make", "-C", str(TOOLKIT), "sources", f"DESTDIR={root}"]
        subprocess.run(argv, env={**os.environ, **strange}, capture_output=True, check=True)
        git = ["git", f"--git-dir={root}/usr/src/busbar-lab/nccl-tests.git"]
        made = subprocess.run([*git, "rev-parse", "refs/heads/master"], capture_output=True, text=True, check=True)
        assert made.stdout.strip() == COMMIT, f"write COMMIT = {made.stdout.strip()!r} to lab/nccl_tests.py"
        assert subprocess.run([*git, "fsck", "--strict"], check=False).returncode == 0


def render(root: Path, machine: Machine) -> Path:
    """The node's /sys, and the answers of its driver."""
    tree.write_hardware(machine, root / "srv/busbar-lab/hw")
    answers = tree.Tree({f"/{name}": text for name, text in nvidia_smi.answers(machine).items()})
    answers.write(root / "usr/share/busbar-lab/nvidia-smi")
    return root


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render(tmp_path_factory.mktemp("h100"), hgx_h100())


def start(root: Path, name: str, options: list[str], **environment: str) -> subprocess.Popen[str]:
    """Start a program without MPI, as the built one does."""
    argv = [sys.executable, "-I", str(TOOLKIT / "nccl_tests_model.py"), f"{name}_perf", "22707", "22707", "single"]
    environment = {"PATH": os.environ["PATH"], "BUSBAR_LAB_ROOT": str(root), **environment}
    argv += [f"/opt/{name}_perf", *options]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def brief(text: str) -> str:
    """Return what a program prints, without figures, the name of this host, process numbers and what is always so."""
    text = re.sub(r"^\S+: Test ", "HOST: Test ", text, flags=re.M)
    text = re.sub(r"^ \.\. \S+ pid \d+", " .. HOST pid N", text, flags=re.M)
    lines = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if words[:1] and words[0].isdigit():
            wrong = ["wrong" if word not in ("0", "N/A") else word for word in (words[-5], words[-1])]
            lines.append(" ".join([*words[:-8], *wrong]))
        elif line.startswith("#  Rank"):
            lines.append(f"rank {words[2]} {line.partition(' device')[2].strip()}")
        elif line.strip("# ") and not re.match(r"# (nccl-tests|nThread|Using)|#  +(size|out-of-place|\()", line):
            lines.append(re.sub(r"(bandwidth +: )[\d.]+ *", r"\1", line))
    return "\n".join(lines)


SCRIPTS = scripts("nccl_tests")


@pytest.mark.golden
@pytest.mark.parametrize("case", SCRIPTS)
def test_what_programs_print_and_end_with(h100: Path, tmp_path: Path, case: str) -> None:
    roots = [h100]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        variables = [word for word in words if re.match("[A-Z_]+=", word)]
        name, *options = words[len(variables) :]
        process = start(roots[-1], name, options, **dict(variable.split("=", 1) for variable in variables))
        out, err = process.communicate(timeout=1800)
        assert out.splitlines()[0] == FIRST_LINE
        return subprocess.CompletedProcess(words, process.returncode, brief(out), brief(f"\n{err}"))

    acts: dict[str, Callable[..., object]] = {
        "on": lambda name: roots.append(render(tmp_path, FAULTS[name].apply(hgx_h100()))),
        "without-a-driver": lambda: roots.append(tmp_path / "none"),
    }
    transcript = Transcript(call, acts=acts, names={"GPU2": hgx_h100().gpus[2].uuid})
    transcript.check("lab_nccl_tests", case, SCRIPTS[case])


def test_the_first_of_environment_user_file_and_system_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "ROOT", str(tmp_path))

    def found() -> str | None:
        return model.settings().get("NCCL_P2P_DISABLE")

    put(tmp_path, "etc/nccl.conf", "NCCL_P2P_DISABLE=1\n")
    assert found() == "1"
    put(tmp_path, f"{HOME}/.nccl.conf", "NCCL_P2P_DISABLE=0\nNCCL_P2P_DISABLE=1\n")
    assert found() == "0"
    put(tmp_path, "other.conf", "#NCCL_P2P_DISABLE=0\n NCCL_P2P_DISABLE=0\nNCCL_P2P_DISABLE = 0\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "other.conf"))
    assert found() == "1"
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    assert found() == "0"


def test_a_collective_that_hangs_prints_its_devices_and_no_more(tmp_path: Path) -> None:
    root = render(tmp_path, FAULTS["collective-hang"].apply(hgx_h100()))
    with start(root, "all_reduce", ["-g", "8"]) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(14)]
        assert lines[0].strip() == FIRST_LINE
        assert "Rank  7" in lines[-1]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.terminate()
        assert process.wait() == -signal.SIGTERM
        assert process.stdout.read() == ""
