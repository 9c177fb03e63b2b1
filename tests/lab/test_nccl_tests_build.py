"""nccl_tests_build with a real make and compiler, on a stand-in for the sources and a lab tree for the toolkits."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import MARKER
from ansible_collections.busbar.fabric.plugins.modules import nccl_tests_build

from tests.lab.child import Child
from tests.trees import put

ROOT = Path(__file__).resolve().parent.parent.parent
LIB = "usr/lib/x86_64-linux-gnu"
SOURCES = Path(__file__).with_name("nccl_tests_node")
Run = Callable[..., dict[str, Any]]


def input_text(name: str, old: str = "", new: str = "") -> str:
    """Return a file of the node or of the sources, with one text in the place of another."""
    return (SOURCES / name).read_text().replace(old, new)


def shared(path: Path, source: str, soname: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    argv = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-x", "c", "-", "-o", str(path)]
    subprocess.run(argv, input=source, text=True, check=True)
    if path.name != soname:
        link = path.with_name(soname)
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)


def nccl(root: Path, version: str) -> None:
    """NCCL as Debian's packages have it."""
    source = f'const char said[] = "NCCL version {version}+cuda12.9\\0NCCL_DEBUG";'
    source += "int ncclGetVersion(void) { return 0; }"
    shared(root / LIB / f"libnccl.so.{version}", source, "libnccl.so.2")
    put(root, "usr/include/nccl.h", input_text("nccl.h", "MINOR 27", f"MINOR {version.split('.')[1]}"))


def archive(path: Path, makefile: str | None = None, perf: str | None = None) -> None:
    """Writes an archive of the stand-in."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {"Makefile": makefile, "perf.c": perf}.items():
            data = (input_text(name) if text is None else text).encode()
            member = tarfile.TarInfo(f"nccl-tests/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def make_node(root: Path) -> None:
    """System root of a node with a GPU driver, CUDA, NCCL and Open MPI."""
    put(root, "usr/local/cuda-12.9/bin/nvcc", input_text("nvcc"), 0o755)
    put(root, "usr/local/cuda-12.9/include/cuda_runtime.h", "")
    shared(root / "usr/local/cuda-12.9/lib64/libcudart.so", "int cudaGetDevice(void) { return 0; }", "libcudart.so.12")
    (root / "usr/local/cuda").symlink_to("cuda-12.9")
    nccl(root, "2.27.7")
    put(root, "usr/bin/nvidia-smi", input_text("nvidia-smi"), 0o755)
    put(root, "usr/bin/mpicc", input_text("mpicc"), 0o755)
    put(root, f"{LIB}/openmpi/include/mpi.h", input_text("mpi.h"))
    # As in Debian's packages, the links for the compiler lie apart from the libraries for the loader.
    shared(root / LIB / "libmpi.so.40.30.4", "int MPI_Init(void) { return 0; }", "libmpi.so.40")
    (root / LIB / "openmpi/lib").mkdir()
    (root / LIB / "openmpi/lib/libmpi.so").symlink_to("../../libmpi.so.40")
    for tool in ("make", "g++", "git"):
        (root / "usr/bin" / tool).symlink_to(shutil.which(tool) or tool)
    archive(root / "nccl-tests.tgz")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("node")
    make_node(root)
    return root


@pytest.fixture
def node(healthy: Path, tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    shutil.copytree(healthy, root, symlinks=True)
    return root


def arguments(node: Path, **more: Any) -> dict[str, Any]:
    hardware = node.parent / "hw"
    hardware.mkdir(exist_ok=True)
    return {
        "commit": "a" * 40,
        "tarball": "/nccl-tests.tgz",
        "sha256": hashlib.sha256((node / "nccl-tests.tgz").read_bytes()).hexdigest(),
        "hardware_root": str(hardware),
        "system_root": str(node),
        **more,
    }


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], node: Path) -> Run:
    """The module's real main() on the node."""

    def call(check_mode: bool = False, **more: Any) -> dict[str, Any]:
        given = arguments(node, **more) | {"_ansible_check_mode": check_mode, "_ansible_remote_tmp": str(node.parent)}
        capsys.readouterr()
        with patch_module_args(given), pytest.raises(SystemExit):
            nccl_tests_build.main()
        return dict(json.loads(capsys.readouterr().out))

    return call


def build_of(node: Path) -> Path:
    return node / "opt/nccl-tests"


def left(node: Path) -> set[str]:
    """What lies in /opt."""
    return {path.name for path in (node / "opt").iterdir()} if (node / "opt").exists() else set()


def judged(result: dict[str, Any]) -> dict[str, str]:
    assert not result.get("failed"), result["msg"]
    return {finding["check"]: finding["have"] for finding in result["findings"]}


def test_check_predicts_the_run_and_the_second_run_changes_nothing(node: Path, run: Run) -> None:
    predicted = run(check_mode=True)
    assert left(node) == set()
    assert judged(predicted) == {"nccl_tests.build": "none"}
    done = run()
    for key in ("changed", "diff", "commands", "repaired"):
        assert predicted[key] == done[key], key
    assert done["changed"]
    assert done["findings"] == []
    assert done["repaired"] == ["nccl_tests.build[persisted]@/opt/nccl-tests"]
    asked = (node / "usr/local/cuda-12.9/bin/asked").read_text()
    again = run()
    assert (again["changed"], again["commands"], again["findings"], again["diff"]) == (False, [], [], [])
    assert again["build"] == done["build"]
    assert run(check_mode=True)["changed"] is False
    assert (node / "usr/local/cuda-12.9/bin/asked").read_text() == asked
    assert left(node) == {"nccl-tests", ".nccl-tests.lock"}


def test_the_build_is_for_the_gpus_and_with_the_libraries_that_the_marker_says(node: Path, run: Run) -> None:
    marker = run()["build"]
    assert marker == json.loads((build_of(node) / MARKER).read_text())
    assert marker["arch"] == ["9.0"]
    assert marker["cuda"] == {
        "home": "/usr/local/cuda-12.9",
        "library": "/usr/local/cuda-12.9/lib64/libcudart.so",
        "version": "12.9.88",
    }
    assert marker["nccl"]["library"] == f"/{LIB}/libnccl.so.2.27.7"
    assert marker["mpi"]["version"] == "Open MPI 4.1.4"
    assert marker["mpi"]["library"] == f"/{LIB}/libmpi.so.40.30.4"
    assert marker["library_path"] == [f"/{LIB}", "/usr/local/cuda-12.9/lib64"]
    for line in (node / "usr/local/cuda-12.9/bin/asked").read_text().splitlines():
        assert [word for word in line.split() if word.startswith("-gencode")] == ["-gencode=arch=compute_90,code=sm_90"]
    program = build_of(node) / "all_reduce_perf"
    path = ":".join(f"{node}{folder}" for folder in marker["library_path"])
    assert subprocess.run([program], env={"LD_LIBRARY_PATH": path}, check=False).returncode == 0
    assert {p.stat().st_mode & 0o777 for p in build_of(node).glob("*_perf")} == {0o755}
    assert "nvcc" in (build_of(node) / "build.log").read_text()
    assert (build_of(node) / "build.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize(
    ("theirs", "check"),
    [
        ("usr/local/cuda-12.9", "cuda"),
        ("usr/local/cuda-12.9/bin/nvcc", "cuda"),
        ("usr/local/cuda-12.9/include", "cuda"),
        (f"{LIB}/libnccl.so.2.27.7", "nccl"),
        ("usr/include/nccl.h", "nccl"),
        (f"{LIB}/openmpi", "mpi"),
        ("usr/bin/mpicc", "mpi"),
        (f"{LIB}/libmpi.so.40.30.4", "mpi"),
        ("usr/bin/nvidia-smi", "arch"),
        ("opt", "build"),
    ],
)
def test_nothing_that_others_may_change_is_built_with(node: Path, run: Run, theirs: str, check: str) -> None:
    (node / "opt").mkdir(mode=0o755)
    os.chown(node / theirs, 65533, -1)
    for result in (run(check_mode=True), run()):
        assert not result["changed"]
        found = {one["check"]: one for one in result["findings"]}
        finding = found[f"nccl_tests.{check}"]
        assert finding["state"] == "unknown"
        assert f"/{theirs} belongs to UID 65533; give it to root alone" in finding["have"]
    assert left(node) == set()
    assert not (node / "usr/local/cuda-12.9/bin/asked").exists()


def test_a_token_in_the_repositorys_address_is_told_nowhere(node: Path, run: Run) -> None:
    given = {"tarball": "", "sha256": "", "repository": "http://s3cr3t-t0ken@127.0.0.1:9/nccl-tests.git"}
    result = run(**given)
    assert result["failed"]
    assert "s3cr3t" not in json.dumps([result[name] for name in ("msg", "argv", "commands")])
    log = node / "opt/nccl-tests.failed.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert "$ git clone" in log.read_text()
    assert "http://[redacted]@127.0.0.1" in log.read_text().splitlines()[0]


def test_a_git_repository_is_cloned_at_the_commit_and_no_other(node: Path, run: Run, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*words: str) -> str:
        argv = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=n@example.org", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    put(repository, "Makefile", input_text("Makefile"))
    put(repository, "perf.c", input_text("perf.c"))
    git("add", ".")
    git("commit", "-qm", "first")
    first = git("rev-parse", "HEAD")
    put(repository, "perf.c", "broken")
    git("commit", "-qam", "second")
    given = {"tarball": "", "sha256": "", "repository": str(repository)}
    done = run(commit=first, **given)
    assert judged(done) == {}
    assert done["build"]["commit"] == first
    assert [line.split()[:2] for line in done["commands"][:3]] == [["git", "clone"], ["git", "-C"], ["git", "-C"]]
    assert run(commit=first, **given)["changed"] is False
    gone = run(commit="b" * 40, **given)
    assert gone["failed"]
    assert gone["argv"][:1] == ["git"]
    assert judged(run(commit=first, **given)) == {}


def another_cuda(node: Path) -> None:
    shutil.copytree(node / "usr/local/cuda-12.9", node / "usr/local/cuda-13.0")
    put(node, "usr/local/cuda-13.0/bin/nvcc", input_text("nvcc", "12.9", "13.0"), 0o755)
    (node / "usr/local/cuda").unlink()
    (node / "usr/local/cuda").symlink_to("cuda-13.0")


def no_mpi(node: Path) -> None:
    (node / "usr/bin/mpicc").unlink()
    shutil.rmtree(node / LIB / "openmpi")


@pytest.mark.parametrize(
    ("change", "have"), [(another_cuda, "CUDA 12.9.88 -> 13.0.88"), (no_mpi, "MPI Open MPI 4.1.4 -> none")]
)
def test_a_changed_input_is_named_and_built_with_once(
    node: Path, run: Run, change: Callable[[Path], None], have: str
) -> None:
    run()
    change(node)
    predicted = run(check_mode=True)
    assert judged(predicted) == {"nccl_tests.build": have}
    done = run()
    assert done["changed"]
    assert (done["findings"], done["diff"], done["commands"]) == ([], predicted["diff"], predicted["commands"])
    assert run()["changed"] is False


def test_what_changes_nothing_that_was_built_from_builds_nothing(node: Path, run: Run) -> None:
    run()
    shutil.copytree(node / "usr/local/cuda-12.9", node / "usr/local/cuda-11.8")
    put(node, "usr/include/other.h", "")
    (node / "nccl-tests.tgz").touch()
    put(build_of(node), "notes.txt", "somebody's")
    assert run()["changed"] is False
    sha256 = hashlib.sha256((node / "nccl-tests.tgz").read_bytes()).hexdigest()
    (node / "nccl-tests.tgz").write_bytes(b"gone")
    assert run(sha256=sha256)["findings"] == []


def test_a_wheel_without_libnccl_so_is_linked_with(node: Path, run: Run) -> None:
    """As pip lays it out: nvidia/nccl/{include,lib}, and libnccl.so.2 as the only name."""
    wheel = node / "srv/venv/nvidia/nccl"
    (wheel / "lib").mkdir(parents=True)
    shutil.copy(node / LIB / "libnccl.so.2.27.7", wheel / "lib/libnccl.so.2")
    put(wheel, "include/nccl.h", input_text("nccl.h"))
    for name in ("libnccl.so.2", "libnccl.so.2.27.7"):
        (node / LIB / name).unlink()
    (node / "usr/include/nccl.h").unlink()
    assert judged(run())["nccl_tests.nccl"] == "none"
    done = run(libraries=["/srv/venv/nvidia/nccl/lib/libnccl.so.2"])
    assert judged(done) == {}
    assert done["build"]["library_path"][0] == "/srv/venv/nvidia/nccl/lib"


def test_a_failing_build_says_what_failed_and_leaves_the_old_one(node: Path, run: Run) -> None:
    run()
    before = (build_of(node) / MARKER).read_bytes()
    (node / "usr/include/nccl.h").write_text(input_text("nccl.h") + "#error not this one\n")
    result = run(commit="b" * 40)
    assert result["failed"]
    assert "#error not this one" in result["msg"]
    assert "ended with 2" in result["msg"]
    assert result["argv"][:4] == ["nice", "-n", "19", "make"]
    assert "#error" in Path(result["log"]).read_text()
    assert left(node) == {"nccl-tests", ".nccl-tests.lock", "nccl-tests.failed.log"}
    assert (build_of(node) / MARKER).read_bytes() == before
    nccl(node, "2.27.7")
    assert judged(run(commit="b" * 40)) == {}
    assert left(node) == {"nccl-tests", ".nccl-tests.lock"}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("perf.c", "ncclGetVersion()", "0", "is not linked with libnccl.so.2"),
        ("Makefile", "all_reduce ", "", "all_reduce_perf: cannot be read: No such file"),
    ],
)
def test_a_make_that_ends_well_without_libraries_or_a_program_is_no_build(
    node: Path, run: Run, file: str, old: str, new: str, message: str
) -> None:
    makefile = input_text("Makefile", *((old, new) if file == "Makefile" else ()))
    perf = input_text("perf.c", *((old, new) if file == "perf.c" else ()))
    archive(node / "nccl-tests.tgz", makefile.replace("-lnccl", "-Wl,--as-needed -lnccl"), perf)
    result = run()
    assert result["failed"]
    assert message in result["msg"]
    assert left(node) == {".nccl-tests.lock", "nccl-tests.failed.log"}


def test_a_build_that_takes_too_long_is_killed_whole(node: Path, run: Run) -> None:
    (node / "usr/local/cuda-12.9/bin/wait").touch()
    started = time.monotonic()
    result = run(build_timeout=4)
    assert time.monotonic() - started < 600
    assert result["failed"]
    assert "took longer than build_timeout, 4 s" in result["msg"]
    waiting = int((node / "usr/local/cuda-12.9/bin/waiting").read_text())
    # Killed is not yet gone: only make itself was waited for.
    wait_for(lambda: not alive(waiting))
    assert left(node) == {".nccl-tests.lock", "nccl-tests.failed.log"}


def alive(pid: int) -> bool:
    """A zombie is not: nobody may be there to reap it in a container."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 600
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


Start = Callable[..., Child]


@pytest.fixture
def start(node: Path) -> Start:
    """Starts the module, asked for another commit. kill_at: before which rename of the build it ends."""

    def is_rename(event: str, of: tuple[Any, ...]) -> bool:
        return event == "os.rename" and str(build_of(node)) in map(str, of[:2])

    return lambda kill_at=0, **more: Child(
        nccl_tests_build.main, arguments(node, commit="b" * 40, **more), kill_at, is_rename
    )


def test_a_killed_run_leaves_the_old_build_and_its_compilers_hold_the_lock(node: Path, run: Run, start: Start) -> None:
    run()
    before = (build_of(node) / MARKER).read_bytes()
    tools = node / "usr/local/cuda-12.9/bin"
    (tools / "wait").touch()
    child = start()
    wait_for(lambda: (tools / "waiting").exists() and (tools / "waiting").read_text().strip())
    child.process.kill()
    child.wait()
    assert (build_of(node) / MARKER).read_bytes() == before
    held = run(commit="b" * 40)
    assert held["failed"]
    assert "is held: another run still builds there" in held["msg"]
    os.killpg(os.getpgid(int((tools / "waiting").read_text())), signal.SIGKILL)
    (tools / "wait").unlink()
    wait_for(lambda: not run(commit="b" * 40).get("failed"))
    assert judged(run(commit="b" * 40)) == {}
    assert left(node) == {"nccl-tests", ".nccl-tests.lock"}


@pytest.mark.parametrize(("kill_at", "have"), [(1, "commit aaaaaaaaaaaa -> bbbbbbbbbbbb"), (2, "none")])
def test_a_run_killed_while_it_exchanges_the_builds_leaves_the_old_one_or_none(
    node: Path, run: Run, start: Start, kill_at: int, have: str
) -> None:
    run()
    assert start(kill_at).wait()[0] == -signal.SIGKILL
    assert judged(run(check_mode=True, commit="b" * 40)) == {"nccl_tests.build": have}
    assert judged(run(commit="b" * 40)) == {}
    assert left(node) == {"nccl-tests", ".nccl-tests.lock"}


def test_a_directory_of_somebody_else_is_left_alone(node: Path, run: Run) -> None:
    put(build_of(node), "all_reduce_perf", "theirs")
    for check_mode in (True, False):
        result = run(check_mode=check_mode)
        assert not result["changed"]
        assert [(f["check"], f["state"]) for f in result["findings"]] == [("nccl_tests.build", "not_owned")]
    assert (build_of(node) / "all_reduce_perf").read_text() == "theirs"


def test_a_linked_directory_stays_a_link(node: Path, run: Run) -> None:
    (node / "opt").mkdir()
    (node / "srv/tests").mkdir(parents=True)
    build_of(node).symlink_to("../srv/tests")
    assert judged(run()) == {}
    assert build_of(node).is_symlink()
    assert (node / "srv/tests" / MARKER).is_file()
    assert run()["changed"] is False


def program(path: str, script: str) -> Callable[[Path], None]:
    return lambda node: put(node, path, f"#!/bin/sh\n{script}\n", 0o755)


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (program("usr/local/cuda-12.9/bin/nvcc", "echo '[Unknown Error]'"), "cuda"),
        (lambda node: shutil.rmtree(node / "usr/local/cuda-12.9"), "cuda"),
        (lambda node: (node / "usr/local/cuda-12.9/include/cuda_runtime.h").unlink(), "cuda"),
        (lambda node: (node / "usr/include/nccl.h").unlink(), "nccl"),
        (lambda node: put(node, "usr/include/nccl.h", input_text("nccl.h", "MINOR 27", "MINOR 26")), "nccl"),
        (lambda node: (node / LIB / "libnccl.so.2.27.7").write_bytes(b"\x7fELF"), "nccl"),
        (lambda node: (node / LIB / "openmpi/include/mpi.h").unlink(), "mpi"),
        (lambda node: (node / LIB / "openmpi/include/mpi.h").write_bytes(b"\xff\0"), "mpi"),
        (program("usr/bin/nvidia-smi", "printf 'compute_cap\\n9.0\\n[Unknown Error]\\n'"), "arch"),
        (lambda node: (node / "usr/bin/nvidia-smi").unlink(), "arch"),
        (lambda node: (node / "usr/bin/make").unlink(), "tools"),
    ],
)
def test_what_is_missing_or_unknown_is_one_cause_and_builds_nothing(
    node: Path, run: Run, damage: Callable[[Path], object], check: str
) -> None:
    damage(node)
    for check_mode in (True, False):
        result = run(check_mode=check_mode)
        assert not result["changed"]
        assert set(judged(result)) == {f"nccl_tests.{check}", "nccl_tests.build"}
        cause, built = sorted(result["findings"], key=lambda finding: bool(finding["because"]))
        assert (cause["check"], built["because"]) == (f"nccl_tests.{check}", cause["id"])
    assert left(node) == set()


def test_mpi_is_taken_from_where_it_is_said_to_be(node: Path, run: Run) -> None:
    (node / "opt/hpcx").mkdir(parents=True)
    shutil.copytree(node / LIB / "openmpi", node / "opt/hpcx/ompi")
    no_mpi(node)
    assert run(mpi_home="/opt/hpcx/ompi")["build"]["mpi"]["library"] == "/opt/hpcx/ompi/lib/libmpi.so"
    # What was built with is looked for there again.
    assert run()["changed"] is False


def test_without_a_commit_nothing_is_asked_for(node: Path, run: Run) -> None:
    result = run(commit="")
    assert (result["changed"], result["findings"], result["passed"], result["build"]) == (False, [], [], None)
