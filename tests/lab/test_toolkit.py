# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's CUDA, NCCL and nccl-tests: built by a real compiler, run on rendered nodes. All is simulated."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import nvidia_smi, tree
from lab.faults import FAULTS
from lab.machine import Machine
from lab.machines import hgx_h100
from lab.nccl_tests import COMMIT, TOOLKIT
from tests.lab.transcript import Transcript, scripts
from tests.trees import put

LIB = "usr/lib/x86_64-linux-gnu"
FIRST_LINE = "# simulated by the Busbar lab: no figure below is a measurement"
GIB = 1 << 30


def make(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *words], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``make install`` puts onto a node."""
    root = tmp_path_factory.mktemp("installed")
    done = make("-C", TOOLKIT, "install", f"DESTDIR={root}")
    assert done.returncode == 0, done.stderr
    return root


def build(installed: Path, clone: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """As nccl-tests is built, but that the libraries lie below another root."""
    values = {
        "BUILDDIR": str(clone.parent / "build"),
        "CUDA_HOME": f"{installed}/usr/local/cuda",
        "NCCL_HOME": f"{installed}/usr",
        "BUSBAR_LAB_MODEL": f"{TOOLKIT}/nccl_tests_model.py",
        **more,
    }
    words = [f"{name}={value}" for name, value in values.items()]
    return make("-C", clone, "-j2", *words, LIBRARY_PATH=f"{installed}/{LIB}")


@pytest.fixture(scope="module")
def clone(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    clone = tmp_path_factory.mktemp("clone") / "nccl-tests"
    source = f"file://{installed}/usr/src/busbar-lab/nccl-tests.git"
    subprocess.run(["git", "clone", "--quiet", source, clone], check=True)
    return clone


@pytest.fixture(scope="module")
def programs(installed: Path, clone: Path) -> Path:
    done = build(installed, clone, NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90")
    assert done.returncode == 0, done.stderr
    return clone.parent / "build"


def render(root: Path, machine: Machine) -> Path:
    """The node's /sys, and the answers of its driver."""
    tree.write_hardware(machine, root / "srv/busbar-lab/hw")
    answers = tree.Tree({f"/{name}": text for name, text in nvidia_smi.answers(machine).items()})
    answers.write(root / "usr/share/busbar-lab/nvidia-smi")
    return root


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render(tmp_path_factory.mktemp("h100"), hgx_h100())


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(programs: Path, installed: Path, h100: Path) -> Run:
    """A program on a node, healthy if none is named. Every output has to say that it is simulated."""

    def call(
        words: str, root: Path | None = None, name: str = "all_reduce", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": f"{installed}/{LIB}:{installed}/usr/local/cuda/lib64",
            "BUSBAR_LAB_ROOT": str(root or h100),
            **environment,
        }
        argv = [str(programs / f"{name}_perf"), *words.split()]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=1800)
        assert done.stdout.splitlines()[0] == FIRST_LINE, done
        return done

    return call


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] and line.split()[0].isdigit()]


def busbw(done: subprocess.CompletedProcess[str]) -> float:
    """Of the largest size, out of place."""
    assert done.returncode == 0, done
    return float(rows(done.stdout)[-1][7])


# -- what is installed -----------------------------------------------------------------------------------------------


def test_the_commit_is_the_same_wherever_it_is_made(installed: Path, tmp_path: Path) -> None:
    """If this fails because the sources have changed: write the commit it names to lab/nccl_tests.py."""
    done = make(
        "-C", TOOLKIT, "sources", f"DESTDIR={tmp_path}", GIT_AUTHOR_NAME="x", GIT_DEFAULT_HASH="sha256", TZ="Asia/Tokyo"
    )
    assert done.returncode == 0, done.stderr
    for root in (installed, tmp_path):
        repository = f"--git-dir={root}/usr/src/busbar-lab/nccl-tests.git"
        argv = ["git", repository, "rev-parse", "refs/heads/master"]
        made = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
        assert made == COMMIT, f"write COMMIT = {made!r} to lab/nccl_tests.py"
        assert subprocess.run(["git", repository, "fsck", "--strict"], check=False).returncode == 0


# -- the node's state ------------------------------------------------------------------------------------------------

WORDS = "-b 8G -e 8G -g 8"


HOME = pwd.getpwuid(os.getuid()).pw_dir.lstrip("/")


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Path]:
    """Renders a machine with one of the catalogue's faults."""

    def call(name: str | None = None, machine: Machine | None = None) -> Path:
        machine = machine or hgx_h100()
        if name:
            machine = FAULTS[name].apply(machine)
        return render(tmp_path, machine)

    return call


SCRIPTS = scripts("nccl_tests")


def brief(text: str) -> str:
    """Return what a program prints, without figures, the name of this host, process numbers and what is always so."""
    text = re.sub(
        r"^ \.\. \S+ pid \d+", " .. HOST pid N", re.sub(r"^\S+: Test ", "HOST: Test ", text, flags=re.M), flags=re.M
    )
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


@pytest.mark.golden
@pytest.mark.parametrize("case", SCRIPTS)
def test_what_programs_print_and_end_with(
    run: Run, node: Callable[..., Path], h100: Path, tmp_path: Path, case: str
) -> None:
    roots = [h100]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        variables = [word for word in words if re.match("[A-Z_]+=", word)]
        name, *options = words[len(variables) :]
        environment = dict(variable.split("=", 1) for variable in variables)
        done = run(" ".join(options), roots[-1], name, **environment)
        done.stdout, done.stderr = brief(done.stdout), brief(f"\n{done.stderr}")
        return done

    acts: dict[str, Callable[..., object]] = {
        "on": lambda name: roots.append(node(name)),
        "without-a-driver": lambda: roots.append(tmp_path / "none"),
    }
    transcript = Transcript(call, acts=acts, names={"GPU2": hgx_h100().gpus[2].uuid})
    transcript.check("lab_nccl_tests", case, SCRIPTS[case])


@pytest.mark.parametrize(
    ("words", "variables", "published"),
    [
        *(
            (f"-b {size} -e {size} -g 8", {}, bar)
            for size, bar in {"1M": 43, "16M": 234, "512M": 438, "8G": 478}.items()
        ),
        *((f"-b 8G -e 8G -g {count}", {}, bar) for count, bar in {2: 370, 4: 370, 6: 440}.items()),
        (WORDS, {"NCCL_NVLS_ENABLE": "0"}, 367),
        (WORDS, {"NCCL_ALGO": "Ring"}, 367),
        # Through shared memory.
        (WORDS, {"NCCL_P2P_DISABLE": "1"}, 10),
    ],
)
def test_a_healthy_node_reaches_the_published_figures(
    run: Run, words: str, variables: dict[str, str], published: float
) -> None:
    assert busbw(run(words, **variables)) == pytest.approx(published, rel=0.02)


def test_the_first_of_environment_user_file_and_system_file_counts(run: Run, node: Callable[..., Path]) -> None:
    root = node()
    put(root, "etc/nccl.conf", "NCCL_P2P_DISABLE=1\n")
    assert busbw(run(WORDS, root)) < 11
    put(root, f"{HOME}/.nccl.conf", "NCCL_P2P_DISABLE=0\nNCCL_P2P_DISABLE=1\n")
    assert busbw(run(WORDS, root)) > 470
    put(root, "other.conf", "#NCCL_P2P_DISABLE=0\n NCCL_P2P_DISABLE=0\nNCCL_P2P_DISABLE = 0\n")
    assert busbw(run(WORDS, root, NCCL_CONF_FILE=str(root / "other.conf"))) < 11
    assert busbw(run(WORDS, root, NCCL_P2P_DISABLE="0", NCCL_CONF_FILE=str(root / "other.conf"))) > 470


def test_a_collective_that_hangs_prints_its_devices_and_no_more(
    programs: Path, installed: Path, node: Callable[..., Path]
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": f"{installed}/{LIB}:{installed}/usr/local/cuda/lib64",
        "BUSBAR_LAB_ROOT": str(node("collective-hang")),
    }
    argv = [str(programs / "all_reduce_perf"), "-g", "8"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(15)]
        assert lines[0].strip() == FIRST_LINE
        assert "Rank  7" in lines[-1]
        time.sleep(0.3)
        assert process.poll() is None
        process.terminate()
        assert process.wait() == -signal.SIGTERM
        assert process.stdout.read() == ""
