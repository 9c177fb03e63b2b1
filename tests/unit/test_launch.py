# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The words that start a job over several nodes, and what its ranks say. The real launchers: tests/cluster."""

from __future__ import annotations

import ast
import inspect
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import launch, rank_guard, rank_program
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.rank_guard import Ending, Rank, RankView
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.transport import Moved

from tests import goldens
from tests.processes import marked
from tests.slurm_daemons import wait
from tests.trees import lines, pci_function, put, rdma_device, tool

ASKED: dict[str, Any] = {"kind": "mpirun", "hosts": ["a", "b"], "per_node": 2}
JOB = launch.wanted(ASKED)
MPIRUN = launch.Launcher("mpirun", "/usr/bin/mpirun", "4.1.4")
SRUN = launch.Launcher("srun", "/usr/bin/srun", "22.05.8")


def view(number: int, host: str = "", **changes: Any) -> RankView:
    """Rank of a healthy job of two hosts with two ranks each."""
    local = number % 2
    begin = Rank(
        *(host or "ab"[number // 2], number, 4, "job1", True, f"{local}", 2, 2),
        *(f"0000:0{local}:00.0", f"{local}-{local}", ""),
    )
    counted = ({"mlx5_0": (10, 20)}, {"mlx5_0": (110, 220)}) if local == 0 else ()
    return RankView(replace(begin, **changes), {"NCCL_DEBUG": "INFO"}, Ending(0, "", 0), counted)


HEALTHY = [view(number) for number in range(4)]


def but(**changes: Any) -> list[RankView]:
    """A healthy job, but for its first rank."""
    return [view(0, **changes), *HEALTHY[1:]]


def one(**changes: Any) -> list[RankView]:
    """A healthy job, but for what its first guard has reported."""
    return [replace(HEALTHY[0], **changes), *HEALTHY[1:]]


# What is judged -> views of its ranks, and the variables that they were meant to have.
JUDGED: dict[str, tuple[list[RankView], list[str] | None]] = {
    "healthy": (HEALTHY, ["NCCL_DEBUG"]),
    "no rank": ([], None),
    "a rank that lacks": (HEALTHY[:3], None),
    "a rank twice": ([*HEALTHY, HEALTHY[3]], None),
    "a job on each host": ([view(n, job=f"job{n // 2}") for n in range(4)], None),
    "each alone": ([view(n, world=1, rank=0) for n in range(4)], None),
    "no number of ranks": ([view(n, world=None) for n in range(4)], None),
    "another host": ([*HEALTHY[:3], view(3, "c")], None),
    "the wrong host": ([*HEALTHY[:2], view(2, "a"), view(3)], None),
    "no PMIx": ([view(n, pmix=False) for n in range(4)], None),
    "one GPU visible": (but(visible=1, visible_devices="3"), None),
    "CPUs of another GPU": (but(cpus="0-1"), None),
    "a GPU for two ranks": (but(gpu="0000:01:00.0"), None),
    "no GPU on the node": (but(gpus=0, visible=0, gpu=""), None),
    "CPUs of the GPU not known": (but(gpu_cpus=""), None),
    "GPU not known": (but(gpu=""), None),
    "variables differ": (one(variables={"NCCL_DEBUG": "WARN"}), None),
    "requested variables differ": (one(variables={"NCCL_DEBUG": "WARN"}), ["NCCL_DEBUG"]),
    "a variable from elsewhere": (HEALTHY, []),
    "variables not known": (one(variables=None), None),
    "no end": (one(ending=None), None),
    "processes left": (one(ending=Ending(None, "", 2)), None),
}


@pytest.mark.golden
def test_ranks_are_one_job_in_its_place_with_its_variables_and_an_end() -> None:
    lines = []
    for case, (views, asked) in JUDGED.items():
        for finding in launch.judge(views, JOB, "all_reduce", asked).findings:
            state = f"{finding.state} because {finding.because}" if finding.because else finding.state
            lines.append(f"{case}: {finding.check}: {state}: {finding.have}")
    goldens.text("launch", "\n".join(lines) + "\n")


def test_hidden_gpus_name_the_options_of_slurm() -> None:
    found = launch.judge(but(visible=1), replace(JOB, kind="srun"), "x").findings
    (binding,) = (finding for finding in found if finding.check == "nccl_perf.binding")
    assert "--gpus-per-node=2 and --gpu-bind=none to nccl_benchmark_launcher_options" in binding.fix


def test_counters_that_ran_backwards_or_were_read_once_moved_nothing_that_is_known() -> None:
    assert launch.moved(HEALTHY) == {host: {"mlx5_0": Moved(100, 200)} for host in "ab"}
    back = replace(HEALTHY[0], rails=({"m": (5, 5), "n": (1, 1)}, {"m": (4, 9), "n": (2, 3)}))
    assert launch.moved([back, replace(HEALTHY[2], rails=({"m": (0, 0)},))]) == {"a": {"n": Moved(1, 2)}}


# What is said -> what is wanted.
REFUSED: dict[str, list[dict[str, Any]]] = {
    "launch.kind": [{"kind": "local"}],
    "launch.hosts": [{"hosts": hosts} for hosts in ([], ["-oProxyCommand=x", "b"], ["a,b", "c"])],
    "a is there twice": [{"hosts": ["a", "a"]}],
    "launch.addresses": [{"addresses": ["fe80::1", "b"]}],
    "1 addresses for 2 hosts": [{"addresses": ["a"]}],
    "launch.per_node": [{"per_node": 0}, {"per_node": True}],
    "launch.python": [{"python": "-c"}],
    "other": [{"other": 1}],
    "launch.options": [{"options": ["hostname"]}],
    "host keys": [{"options": ["--mca", "plm_rsh_args", "-o StrictHostKeyChecking=no"]}],
    "must not be there": [{"options": ["--tag-output", "--"]}],
}


@pytest.mark.parametrize(("said", "changes"), [(said, one) for said, every in REFUSED.items() for one in every])
def test_what_cannot_be_launched_is_refused_by_name(said: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ParseError, match="launch") as caught:
        launch.wanted({**ASKED, **changes})
    assert said in str(caught.value)


BY_IP = {"addresses": ["10.0.0.1", "10.0.0.2"]}
BY_NAME = {"addresses": ["a.example.com", "10.0.0.2"]}
OWN_MPIRUN = ["--mca", "btl_tcp_if_include", "eth0", "--tag-output", "--prefix", "/opt/ompi"]
OWN_SRUN = ["--partition=gpu", "-Aops", "--gpus-per-node=8", "--gpu-bind=none", "--mem=1G", "--jobid=7", "--label"]
# What is started -> its launcher, what is wanted beside ASKED, names of variables, and the limit in seconds.
WORDS: dict[str, tuple[launch.Launcher, dict[str, Any], list[str], int]] = {
    "mpirun": (MPIRUN, {}, [], 60),
    "mpirun as root, by addresses": (replace(MPIRUN, as_root=True), BY_IP, ["NCCL_DEBUG"], 60),
    "mpirun of a site": (MPIRUN, {"options": OWN_MPIRUN}, [], 60),
    "Open MPI 4, a name with dots": (MPIRUN, BY_NAME, [], 60),
    "Open MPI 5, a name with dots": (replace(MPIRUN, version="5.0.6"), BY_NAME, [], 60),
    "srun by addresses": (SRUN, BY_IP, ["NCCL_DEBUG"], 150),
    "srun of a site": (SRUN, {"options": OWN_SRUN}, [], 60),
    "srun with another PMIx": (SRUN, {"options": ["--mpi=pmix_v4"]}, [], 60),
}


@pytest.mark.golden
def test_the_words_that_start_a_job() -> None:
    """Variables are named only, and what the site decides is not there twice."""
    rows = []
    for case, (launcher, changes, variables, limit) in WORDS.items():
        words = launch.words(launch.wanted({**ASKED, "kind": launcher.kind, **changes}), launcher, variables, limit)
        rows.append([case, shlex.join("GUARD" if word == rank_guard.program() else word for word in words)])
    goldens.check("launch", "words", rows)


def test_a_value_of_a_variable_is_on_no_command_line() -> None:
    with pytest.raises(ParseError, match="environment"):
        launch.words(JOB, MPIRUN, ["A=1"], 60)


def test_mpirun_s_ssh_forwards_no_agent_checks_host_keys_and_starts_from_this_node_only() -> None:
    found = launch.environment(MPIRUN)
    for prefix in ("OMPI_MCA_plm_rsh_", "PRTE_MCA_plm_ssh_"):
        words = found[prefix + "args"].split()
        assert {"-a", "-x", "BatchMode=yes", "StrictHostKeyChecking=yes"} <= {*words}
        assert (found[prefix + "agent"], found[prefix + "no_tree_spawn"]) == ("ssh", "1")
    assert launch.environment(SRUN) == {}


@pytest.mark.parametrize(
    ("kind", "script", "said"),
    [
        ("mpirun", None, "is not installed .*; install it, or set nccl_benchmark_launcher to srun"),
        ("mpirun", "echo 'HYDRA build details:'", "only Open MPI's mpirun"),
        ("mpirun", "echo 'mpirun (Open MPI) 1.10.7'", "4 or later is needed"),
        ("mpirun", "printf '\\377\\376'", "is not text"),
        ("mpirun", "true", "only Open MPI's mpirun"),
        ("srun", "echo 'srun: fatal: Could not establish a configuration source' >&2; exit 1", "scontrol ping"),
        ("srun", "echo usage; exit 0", "scontrol ping"),
    ],
)
def test_a_launcher_that_is_none_names_the_way_out(tmp_path: Path, kind: str, script: str | None, said: str) -> None:
    if script is not None:
        tool(tmp_path, f"usr/bin/{kind}", script)
    with pytest.raises(ReadError, match=said):
        launch.read(Host(system_root=str(tmp_path)), kind)


@pytest.mark.parametrize(
    ("library", "path"),
    [
        ("/opt/ompi/lib/libmpi.so.40", "/opt/ompi/bin/mpirun"),
        ("/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4", "/usr/bin/mpirun"),
        ("/srv/other/lib/libmpi.so.40", "/usr/bin/mpirun"),
    ],
)
def test_mpirun_is_that_of_the_mpi_that_the_program_is_built_with(tmp_path: Path, library: str, path: str) -> None:
    for place in ("usr/bin", "opt/ompi/bin"):
        tool(tmp_path, f"{place}/mpirun", "echo 'mpirun (Open MPI) 5.0.6'")
    found = launch.read(Host(system_root=str(tmp_path)), "mpirun", library)
    assert (found.path, found.version) == (f"{tmp_path}{path}", "5.0.6")
    (tmp_path / "opt/ompi/bin/mpirun").chmod(0o777)
    if path.startswith("/opt"):
        with pytest.raises(ReadError, match="is not run as root"):
            launch.read(Host(system_root=str(tmp_path)), "mpirun", library)


def test_a_refusal_that_nobody_knows_is_quoted() -> None:
    said = launch.refusal(MPIRUN, 1, "line\nsomething odd\n")
    assert "something odd" in said
    assert "hostname in place of the program" in said
    assert "ssh-keyscan" in launch.refusal(MPIRUN, 255, "Host key verification failed.\r\nmore\n")
    # Of 64 nodes the one that is not known is told.
    for line in ("No ED25519 host key is known for node17", "Host key for node17 has changed"):
        line += " and you have requested strict checking.\r\nHost key verification failed.\r\n"
        said = launch.refusal(MPIRUN, 255, line)
        assert "node17" in said
        assert "ssh-keyscan" in said


def guard(*argv: str, python: str = sys.executable, **variables: str) -> tuple[int, tuple[RankView, ...], str]:
    """Exit code, what it said, and what the program printed, of a guard that is rank 0 of 1."""
    argv = (python, "-I", "-S", "-c", rank_guard.program(), *argv)
    rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    done = subprocess.run(argv, env={**os.environ, **rank, **variables}, capture_output=True, text=True, check=False)
    return done.returncode, *rank_guard.parse(done.stdout)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Two GPUs, each with a NIC, on the CPUs of this machine."""
    here = rank_program.ranges(os.sched_getaffinity(0))
    for number in range(2):
        gpu, nic = (f"0000:{number}{function}:00.0" for function in (1, 2))
        bridge, own = f"pci0000:{number}0/0000:{number}0:00.0", {"numa_node": f"{number}", "local_cpulist": here}
        pci_function(tmp_path, f"{bridge}/{gpu}", **own)
        pci_function(tmp_path, f"{bridge}/{nic}", **own)
        counters = rdma_device(tmp_path, f"mlx5_{number}", f"{bridge}/{nic}") / "ports/1/counters"
        lines(counters, {"port_xmit_data": "1000", "port_rcv_data": "1000"})
        information = f"Model: \t NVIDIA H200\nGPU UUID: \t GPU-{number}abc\nDevice Minor: \t {number}\n"
        put(tmp_path, f"proc/driver/nvidia/gpus/{gpu}/information", information)
        put(tmp_path, f"dev/nvidia{number}", "")
    return tmp_path


def test_the_guard_says_where_the_rank_is_and_what_the_nics_have_counted(node: Path) -> None:
    counter = node / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    told = {"NCCL_DEBUG": "INFO", "NCCL_NET_PLUGIN": "hush", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    program = ["sh", "-c", f"echo 1250 >{counter}; echo $CUDA_DEVICE_ORDER; exit 3"]
    code, (found,), text = guard("--limit", "60", "--root", str(node), "--", *program, **told)
    assert (code, text, found.ending) == (3, "PCI_BUS_ID\n", Ending(3, "", 0))
    begin = found.begin
    assert (begin.gpus, begin.visible, begin.gpu) == (2, 2, "0000:01:00.0")
    assert (begin.rank, begin.world) == (0, 1)
    assert found.variables is not None
    assert found.variables["NCCL_DEBUG"] == "INFO"
    assert "hush" not in str(found.variables)
    assert launch.moved([found])[begin.host] == {"mlx5_0": Moved(1000, 0), "mlx5_1": Moved(0, 0)}


@pytest.mark.parametrize(
    ("chosen", "visible", "gpu"),
    [
        *(("1,0", 2, "0000:11:00.0"), ("GPU-1", 1, "0000:11:00.0"), ("0,7", 1, "0000:01:00.0")),
        *(("", 0, ""), ("-1", 0, ""), (None, 1, "0000:11:00.0")),
    ],
)
def test_the_rank_has_the_gpu_that_cuda_would_give_it(node: Path, chosen: str | None, visible: int, gpu: str) -> None:
    """Without a choice: of those that no cgroup hides."""
    (node / "dev/nvidia0").unlink() if chosen is None else None
    variables = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    _code, (found,), _text = guard("--limit", "60", "--root", str(node), "--", "true", **variables)
    assert (found.begin.gpus, found.begin.visible, found.begin.gpu) == (2, visible, gpu)


def test_at_the_limit_all_is_ended_on_the_oldest_python(oldest_python: str) -> None:
    program = ["sh", "-c", "trap '' TERM; setsid sleep 100000 & sleep 100000"]
    code, (found,), _text = guard("--limit", "0.5", "--root", "/", "--", *program, python=oldest_python)
    assert (code, found.ending) == (124, Ending(None, "the limit is reached", 0))


@pytest.mark.parametrize("victims", ["launcher", "guard", "keeper", "program", "guard keeper"])
def test_whichever_is_killed_nothing_is_left(tmp_path: Path, victims: str) -> None:
    """The launcher starts the guard, that the keeper, that the program, and that another in a session of its own."""
    program = ["sh", "-c", 'echo "$PPID $$" >pids; setsid sleep 86399 & wait']
    argv = [sys.executable, "-I", "-S", "-c", rank_guard.program(), "--limit", "86399", "--root", "/", "--", *program]
    start = "import subprocess, sys; open('guard', 'w').write(str(subprocess.Popen(sys.argv[1:]).pid)); input()"
    mark = str(tmp_path)
    given: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "MARK": mark}, "stdin": subprocess.PIPE}
    launcher = subprocess.Popen([sys.executable, "-c", start, *argv], **given, stdout=subprocess.DEVNULL)
    try:
        wait("the program", lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
        keeper, program_pid = map(int, (tmp_path / "pids").read_text().split())
        pids = {"launcher": launcher.pid, "guard": int((tmp_path / "guard").read_text())}
        pids.update(keeper=keeper, program=program_pid)
        for victim in victims.split():
            os.kill(pids[victim], signal.SIGKILL)
        if victims == "guard keeper":
            # Then it is the kernel that ends the program, and nothing but that.
            wait("the program to end", lambda: program_pid not in marked("MARK", mark))
        else:
            wait("all to end", lambda: not {*marked("MARK", mark)} - {launcher.pid})
    finally:
        for pid in marked("MARK", mark):
            os.kill(pid, signal.SIGKILL)
        launcher.kill()
        launcher.communicate()


def test_a_program_that_is_not_there_is_said() -> None:
    assert guard("--limit", "60", "--root", "/", "--", "/no/such/program")[0] == rank_program.NOT_STARTED


def test_the_guard_runs_on_python_36() -> None:
    ast.parse(inspect.getsource(rank_program), feature_version=(3, 6))
