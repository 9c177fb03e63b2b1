# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's CUDA, NCCL and nccl-tests: built by a real compiler, run on rendered nodes. All is simulated."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import nvidia_smi, tree
from lab.fault import FileFault
from lab.faults import FAULTS
from lab.machine import Machine
from lab.machines import hgx_h100, hgx_h200_roce
from lab.nccl_tests import COMMIT, TOOLKIT
from tests.lab.transcript import Transcript, scripts
from tests.trees import put

LIB = "usr/lib/x86_64-linux-gnu"
NAMES = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv"}
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


def test_install_puts_cuda_and_nccl_where_their_packages_do(installed: Path) -> None:
    assert os.readlink(installed / "usr/local/cuda") == "cuda-13.0"
    assert os.readlink(installed / "usr/bin/nvidia-smi") == "../share/busbar-lab/bin/nvidia-smi"
    libraries = {"usr/local/cuda/lib64/libcudart.so": "libcudart.so.13", f"{LIB}/libnccl.so": "libnccl.so.2"}
    for library, soname in libraries.items():
        assert (installed / library).resolve().read_bytes()[:4] == b"\x7fELF"
        dynamic = subprocess.run(["readelf", "-d", installed / library], capture_output=True, text=True, check=True)
        assert f"Library soname: [{soname}]" in dynamic.stdout
    version = subprocess.run([installed / "usr/local/cuda/bin/nvcc", "--version"], capture_output=True, check=True)
    assert b"release 13.0, V13.0.88" in version.stdout
    assert b"simulated" in version.stdout
    assert json.loads((installed / "usr/local/cuda/version.json").read_text())["cuda"]["version"].startswith("13.0")


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


def test_installing_again_changes_no_source_and_leaves_nothing_beside_the_toolkit(tmp_path: Path) -> None:
    before = {path for path in TOOLKIT.rglob("*") if "__pycache__" not in path.parts}
    for _ in range(2):
        assert make("-C", TOOLKIT, "install", f"DESTDIR={tmp_path}").returncode == 0
    assert {path for path in TOOLKIT.rglob("*") if "__pycache__" not in path.parts} == before


def test_the_library_names_what_nccl_reads_and_knows_its_version(installed: Path) -> None:
    data = (installed / LIB / "libnccl.so.2").read_bytes()
    assert b"NCCL version 2.27.7+cuda13.0\0" in data
    assert b"\0NCCL_IB_HCA\0" in data
    assert data.count(b"\0NCCL_") >= 170
    assert b"NCCL_IB_DEVICE_PCI_ORDER\0" not in data  # of 2.29.7
    version = ctypes.c_int()
    assert ctypes.CDLL(str(installed / LIB / "libnccl.so.2")).ncclGetVersion(ctypes.byref(version)) == 0
    assert version.value == 22707


def test_the_library_reads_a_file_as_nccl_does(installed: Path, tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    long = "L" * 1100
    conf.write_text(f"#NCCL_A=1\n NCCL_B=2\nNCCL_C==x \nno equals\nNCCL_D=1\nNCCL_D=2\nNCCL_E=file\nNCCL_F={long}\n")
    code = (
        "import ctypes; n = ctypes.CDLL(%r); print(n.ncclGetUniqueId(ctypes.create_string_buffer(128)));"
        "g = ctypes.CDLL(None).getenv; g.restype = ctypes.c_char_p;"
        "print([g(x) for x in (b'#NCCL_A', b'NCCL_B', b' NCCL_B', b'NCCL_C', b'NCCL_D', b'NCCL_E')], len(g(b'NCCL_F')))"
    ) % str(installed / LIB / "libnccl.so.2")
    environment = {**os.environ, "NCCL_CONF_FILE": str(conf), "NCCL_E": "environment"}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == [
        "0",
        "[None, None, b'2', b'=x ', b'1', b'environment'] 1023",
    ]


def test_nvcc_hands_the_rest_to_the_host_compiler(installed: Path, tmp_path: Path) -> None:
    source = tmp_path / "a b.cu"
    source.write_text(
        '#include <cuda_runtime.h>\nint main() { int n; cudaGetDevice(&n); return VALUE + sizeof "x"; }\n'
    )
    argv: list[str | Path] = [
        *(installed / "usr/local/cuda/bin/nvcc", "-ccbin", "g++", "-gencode", "arch=compute_90a,code=sm_90a"),
        *("-Xcompiler", "-Wall,-DVALUE=3", "--threads", "2", "-lineinfo", "-cudart", "shared"),
        *("-Xlinker", "--enable-new-dtags", "-o", tmp_path / "x y", source),
    ]
    subprocess.run(argv, check=True)
    environment = {"LD_LIBRARY_PATH": f"{installed}/usr/local/cuda/lib64"}
    assert subprocess.run([tmp_path / "x y"], env=environment, check=False).returncode == 5


def test_the_sources_build_every_program_for_the_architecture_that_is_asked_for(programs: Path) -> None:
    assert {path.name for path in programs.glob("*_perf")} == {f"{name}_perf" for name in NAMES}
    needed = subprocess.run(["readelf", "-d", programs / "all_reduce_perf"], capture_output=True, text=True, check=True)
    assert "[libnccl.so.2]" in needed.stdout
    assert "[libcudart.so.13]" in needed.stdout
    assert "RPATH" not in needed.stdout.upper().replace("RUNPATH", "RPATH")


MPI_OF_ONE = """
int ompi_mpi_comm_world, ompi_mpi_byte;
int MPI_Initialized(int *flag) { return *flag = 0; }
int MPI_Init(void *a, void *b) { return a != b; }
int MPI_Comm_rank(void *of, int *rank) { return *rank = of != &ompi_mpi_comm_world; }
int MPI_Comm_size(void *of, int *size) { return (*size = of == &ompi_mpi_comm_world) - 1; }
int MPI_Iallgather(void *from, int count, void *type, void *to) {
  __builtin_memcpy(to, from, count);
  return type != &ompi_mpi_byte;
}
int MPI_Ibarrier(void *of) { return of != &ompi_mpi_comm_world; }
int MPI_Test(void *request, int *flag) { return !(*flag = 1) && request; }
int MPI_Finalize(void) { return 0; }
"""


def test_an_mpi_build_has_its_suffix_and_loads_the_library_that_it_is_linked_with(
    installed: Path, clone: Path, tmp_path: Path, h100: Path
) -> None:
    """What several processes do is tested with a real MPI (tests/cluster)."""
    mpi = tmp_path / "mpi"
    (mpi / "include").mkdir(parents=True)
    (mpi / "lib").mkdir()
    (mpi / "include/mpi.h").write_text('extern "C" int MPI_Initialized(int *flag);\n')
    compile_ = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(mpi / "lib/libmpi.so")]
    subprocess.run(compile_, input=MPI_OF_ONE, text=True, check=True)
    out = tmp_path / "build"
    gencode = "-gencode=arch=compute_90,code=sm_90"
    more = {"MPI": "1", "MPI_HOME": str(mpi), "NAME_SUFFIX": "_mpi", "BUILDDIR": str(out), "NVCC_GENCODE": gencode}
    more["NAMES"] = "all_reduce"
    assert build(installed, clone, **more).returncode == 0
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": f"{installed}/{LIB}:{installed}/usr/local/cuda/lib64:{mpi}/lib",
        "BUSBAR_LAB_ROOT": str(h100),
    }
    argv = [str(out / "all_reduce_perf_mpi"), "-g", "8"]
    alone = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert "# Collective test starting: all_reduce_perf_mpi" in alone.stdout
    # Another MPI's handles are numbers.
    subprocess.run(compile_, input=MPI_OF_ONE.replace("ompi_mpi_byte", "a_byte"), text=True, check=True)
    other = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (other.returncode, rows(other.stdout)) == (64, [])
    assert "the programs know Open MPI only" in other.stderr


# -- what the programs print -----------------------------------------------------------------------------------------


def test_time_and_bandwidths_of_a_row_agree(run: Run) -> None:
    factors = {"all_reduce": 1.75, "all_gather": 0.875, "broadcast": 1, "sendrecv": 1, "alltoall": 0.875}
    for name, factor in factors.items():
        row = rows(run("-b 1G -e 1G -g 8", name=name).stdout)[-1]
        microseconds, algbw, bus = (float(value) for value in row[5:8])
        assert GIB / microseconds / 1e3 == pytest.approx(algbw, rel=0.001)
        assert algbw * factor == pytest.approx(bus, rel=0.001)


# -- JSON ------------------------------------------------------------------------------------------------------------


def test_json_says_what_the_text_says_and_that_it_is_simulated(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    done = run(f"-b 1G -e 4G -f 2 -g 8 -J {path}", SECRET="in the environment")
    data = json.loads(path.read_text())
    assert f"# Writing JSON output to {path}\n" in done.stdout
    assert data["simulated"] == "true"
    assert (data["version"], data["nccl_version"], data["config"]["ngpus"]) == (3, 22707, 8)
    assert data["args"][1:3] == ["-b", "1G"]
    assert "SECRET=in the environment" in data["env"]  # as the real one: a trap
    assert [row["size"] for row in data["results"]] == [GIB, 2 * GIB, 4 * GIB]
    for row, shown in zip(data["results"], rows(done.stdout), strict=True):
        assert row["out_of_place"]["bus_bw"] == pytest.approx(float(shown[7]), abs=0.01)
        assert row["root"] == "    -1"
    assert data["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert data["average_bus_bandwidth"]["okay"] == "unchecked"


def test_json_never_overwrites_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("mine")
    for name in ("out.json.0", "out.json.1"):
        assert f"# Writing JSON output to {tmp_path / name}\n" in run(f"-g 8 -J {path}").stdout
        assert json.loads((tmp_path / name).read_text())["simulated"] == "true"
    assert path.read_text() == "mine"
    nowhere = run(f"-g 8 -J {tmp_path}/none/out.json")
    assert nowhere.returncode == 0
    assert "# skipping json output; " in nowhere.stdout


def test_json_of_a_run_that_fails_has_no_results(run: Run, tmp_path: Path) -> None:
    assert run(f"-g 9 -J {tmp_path}/out.json").returncode == 5
    data = json.loads((tmp_path / "out.json").read_text())
    assert (data["simulated"], data.keys() & {"results", "end_time"}) == ("true", set())


# -- the node's state ------------------------------------------------------------------------------------------------

WORDS = "-b 8G -e 8G -g 8"


HOME = pwd.getpwuid(os.getuid()).pw_dir.lstrip("/")


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Path]:
    """Renders a machine with one of the catalogue's faults."""

    def call(name: str | None = None, machine: Machine | None = None) -> Path:
        machine = machine or hgx_h100()
        if name:
            change = FAULTS[name].change
            machine = FAULTS[name].apply(machine)
            if isinstance(change, FileFault):
                put(tmp_path, f"{HOME}/.nccl.conf", change.edit(machine, None) or "")
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


@pytest.mark.parametrize(("fault", "share"), [("nvlink-down", 17 / 18), ("gpu-slow", 0.6), ("gpu-busy", 0.7)])
def test_a_gpu_in_trouble_costs_its_share_of_what_it_takes_part_in(
    run: Run, node: Callable[..., Path], fault: str, share: float
) -> None:
    root, healthy = node(fault, hgx_h200_roce()), busbw(run(WORDS))
    assert busbw(run(WORDS, root)) == pytest.approx(healthy * share, rel=0.01)


def test_a_collective_that_hangs_prints_its_devices_and_no_more(
    programs: Path, installed: Path, node: Callable[..., Path], tmp_path: Path
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": f"{installed}/{LIB}:{installed}/usr/local/cuda/lib64",
        "BUSBAR_LAB_ROOT": str(node("collective-hang")),
    }
    argv = [str(programs / "all_reduce_perf"), "-g", "8", "-J", str(tmp_path / "out.json")]
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
    assert '"env":[' in (tmp_path / "out.json").read_text()  # the trap again: the environment is on the disk by then
