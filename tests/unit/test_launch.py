# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The words that start a job over several nodes, and what its ranks say. The real launchers: tests/cluster."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import os
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

from tests.slurm_daemons import wait

ASKED: dict[str, Any] = {"kind": "mpirun", "hosts": ["a", "b"], "per_node": 2}
JOB = launch.wanted(ASKED)
MPIRUN = launch.Launcher("mpirun", "/usr/bin/mpirun", "Open MPI", "4.1.4")
SRUN = launch.Launcher("srun", "/usr/bin/srun", "Slurm", "22.05.8")


def view(number: int, host: str = "", **changes: Any) -> RankView:
    """Rank of a healthy job of two hosts with two ranks each."""
    local = number % 2
    begin = Rank(
        *(host or "ab"[number // 2], number, 4, local, "job1", True, 100 + number, f"{local}", 2, 2),
        *(f"0000:0{local}:00.0", local, f"{local}-{local}", (f"mlx5_{local}",), "", ""),
    )
    counted = ({"mlx5_0": (10, 20)}, {"mlx5_0": (110, 220)}) if local == 0 else ()
    return RankView(replace(begin, **changes), {"NCCL_DEBUG": "INFO"}, Ending(0, "", 0), counted)


HEALTHY = [view(number) for number in range(4)]


def states(views: list[RankView], kind: launch.Launch = JOB, **more: Any) -> dict[str, str]:
    """What is not ok: last word of the check -> its state, and what was found."""
    plan = launch.judge(views, kind, "all_reduce", **more)
    return {f.check.rpartition(".")[2]: f"{f.state}: {f.have}" for f in plan.findings if not f.ok}


def test_a_healthy_job_has_nothing_to_say() -> None:
    assert states(HEALTHY, asked=["NCCL_DEBUG"]) == {}
    assert launch.moved(HEALTHY) == {host: {"mlx5_0": launch.Moved(100, 200)} for host in "ab"}


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ([], "unknown: no rank has started"),
        (HEALTHY[:3], "unknown: 1 of 4 ranks have not started: b has 1 of 2"),
        ([*HEALTHY, HEALTHY[3]], "drift: more than one rank 3"),
        ([view(n, job=f"job{n // 2}") for n in range(4)], "drift: 2 jobs, such as 'job0' on a; 'job1' on b"),
        ([view(n, world=1, rank=0) for n in range(4)], "drift: the launcher reports 1 ranks; more than one rank 0"),
        ([view(n, world=None) for n in range(4)], "drift: the launcher reports ? ranks"),
        ([*HEALTHY[:3], view(3, "c")], "drift: ranks on c, which was not requested"),
        ([*HEALTHY[:2], view(2, "a"), view(3)], "drift: ranks on the wrong hosts: 3 on a"),
        (
            [view(n, pmix=False) for n in range(4)],
            "drift: 4 ranks cannot find each other, each is a separate job (rank 0 on a)",
        ),
    ],
)
def test_what_is_not_one_job_is_found(views: list[RankView], said: str) -> None:
    assert states(views)["job"] == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"visible": 1, "visible_devices": "3"}, "rank 0 on a can use 1 of 2 GPUs (CUDA_VISIBLE_DEVICES=3)"),
        ({"cpus": "0-1"}, "rank 0 on a runs on CPUs 0-1, next to its GPU are 0-0"),
        ({"gpu": "0000:01:00.0"}, "rank 0 on a and rank 1 on a share GPU 0000:01:00.0"),
    ],
)
def test_a_rank_in_the_wrong_place_is_found(changes: dict[str, Any], said: str) -> None:
    assert states([view(0, **changes), *HEALTHY[1:]]) == {"binding": "drift: " + said}


@pytest.mark.parametrize("changes", [{"gpus": 0, "visible": 0, "gpu": ""}, {"gpu_cpus": ""}, {"gpu": ""}])
def test_a_place_that_is_not_known_is_not_a_good_one(changes: dict[str, Any]) -> None:
    assert states([view(0, **changes), *HEALTHY[1:]])["binding"].startswith("unknown: ")


def test_hidden_gpus_name_the_options_of_slurm() -> None:
    found = launch.judge([view(0, visible=1), *HEALTHY[1:]], replace(JOB, kind="srun"), "x").findings
    (binding,) = (finding for finding in found if finding.check == "nccl_perf.binding")
    assert "--gpus-per-node=2 and --gpu-bind=none to nccl_benchmark_launcher_options" in binding.fix


def test_variables_differ_or_came_from_nowhere() -> None:
    other = [replace(HEALTHY[0], variables={"NCCL_DEBUG": "WARN"}), *HEALTHY[1:]]
    found = {"variables": "drift: NCCL_DEBUG is INFO for rank 1 on a; WARN for rank 0 on a"}
    assert states(other) == states(other, asked=["NCCL_DEBUG"]) == found
    assert states(HEALTHY, asked=[])["variables"].startswith("drift: NCCL_DEBUG is set but was not requested: rank 0")
    assert (
        states([replace(HEALTHY[0], variables=None), *HEALTHY[1:]])["variables"] == "unknown: not known of rank 0 on a"
    )


def test_a_rank_whose_end_nobody_saw_may_still_run() -> None:
    assert states([replace(HEALTHY[0], ending=None), *HEALTHY[1:]])["left"].startswith(
        "unknown: no end was reported by"
    )
    assert states([replace(HEALTHY[0], ending=Ending(None, "", 2)), *HEALTHY[1:]])["left"].startswith("drift: ")


def test_counters_that_ran_backwards_or_were_read_once_moved_nothing_that_is_known() -> None:
    back = replace(HEALTHY[0], rails=({"m": (5, 5), "n": (1, 1)}, {"m": (4, 9), "n": (2, 3)}))
    assert launch.moved([back, replace(HEALTHY[2], rails=({"m": (0, 0)},))]) == {"a": {"n": launch.Moved(1, 2)}}


# -- the words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "local"}, "launch.kind"),
        ({"hosts": []}, "launch.hosts"),
        ({"hosts": ["a", "a"]}, "a is there twice"),
        ({"hosts": ["-oProxyCommand=x", "b"]}, "launch.hosts"),
        ({"hosts": ["a,b", "c"]}, "launch.hosts"),
        ({"addresses": ["fe80::1", "b"]}, "launch.addresses"),
        ({"addresses": ["a"]}, "1 addresses for 2 hosts"),
        ({"per_node": 0}, "launch.per_node"),
        ({"per_node": True}, "launch.per_node"),
        ({"python": "-c"}, "launch.python"),
        ({"other": 1}, "other"),
        ({"options": ["hostname"]}, "launch.options"),
        *(
            ({"options": [*words]}, "chosen by the benchmark itself")
            for words in (["-H", "c"], ["--hostfile", "f"], ["-np", "3"], ["-x", "A=1"], ["--mca", "a", "b", "-N", "2"])
        ),
        *(
            ({"kind": "srun", "options": [word]}, "chosen by the benchmark itself")
            for word in ("-wc", "--nodelist=c", "--nodel=c", "-N2", "-n", "--export=ALL", "--time=1", "--no", "-t5")
        ),
        ({"options": ["--mca", "plm_rsh_args", "-o StrictHostKeyChecking=no"]}, "host keys"),
        ({"options": ["--mca", "mca_base_env_list", "A=1"]}, "variables are for"),
        ({"options": ["--tag-output", "--"]}, "must not be there"),
    ],
)
def test_what_cannot_be_launched_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ParseError, match="launch") as caught:
        launch.wanted({**ASKED, **changes})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mpirun", ["--mca", "btl_tcp_if_include", "eth0", "--tag-output", "--prefix", "/opt/ompi"]),
        (
            "srun",
            ["--partition=gpu", "-Aops", "--gpus-per-node=8", "--gpu-bind=none", "--mem=1G", "--jobid=7", "--label"],
        ),
    ],
)
def test_a_site_has_options_of_its_own(kind: str, options: list[str]) -> None:
    asked = launch.wanted({**ASKED, "kind": kind, "options": options})
    words = launch.words(asked, MPIRUN if kind == "mpirun" else SRUN, [], 60)
    at = words.index(options[0])
    assert words[at : at + len(options)] == options


def test_a_default_that_the_site_decides_is_not_there_twice() -> None:
    words = launch.words(launch.wanted({**ASKED, "kind": "srun", "options": ["--mpi=pmix_v4"]}), SRUN, [], 60)
    assert [word for word in words if word.startswith("--mpi")] == ["--mpi=pmix_v4"]


def test_hosts_are_reached_by_their_addresses_and_variables_are_named_only() -> None:
    asked = launch.wanted({**ASKED, "addresses": ["10.0.0.1", "10.0.0.2"]})
    words = launch.words(asked, replace(MPIRUN, as_root=True), ["NCCL_DEBUG"], 60)
    assert words[:2] == ["/usr/bin/mpirun", "--allow-run-as-root"]
    assert words[words.index("-H") + 1] == "10.0.0.1:2,10.0.0.2:2"
    assert words[words.index("-x") + 1] == "NCCL_DEBUG"
    assert "--allow-run-as-root" not in launch.words(asked, MPIRUN, [], 60)
    words = launch.words(replace(asked, kind="srun"), SRUN, ["NCCL_DEBUG"], 150)
    assert {"--nodelist=10.0.0.1,10.0.0.2", "--export=NCCL_DEBUG,PATH", "--time=4", "--ntasks=4"} <= {*words}
    with pytest.raises(ParseError, match="environment"):
        launch.words(asked, MPIRUN, ["A=1"], 60)


def test_mpirun_s_ssh_forwards_no_agent_checks_host_keys_and_starts_from_this_node_only() -> None:
    found = launch.environment(MPIRUN)
    for prefix in ("OMPI_MCA_plm_rsh_", "PRTE_MCA_plm_ssh_"):
        words = found[prefix + "args"].split()
        assert {"-a", "-x", "BatchMode=yes", "StrictHostKeyChecking=yes"} <= {*words}
        assert (found[prefix + "agent"], found[prefix + "no_tree_spawn"]) == ("ssh", "1")
    assert launch.environment(SRUN) == {}


def test_a_name_with_dots_stays_whole() -> None:
    full = launch.wanted({**ASKED, "addresses": ["a.example.com", "10.0.0.2"]})
    assert "orte_keep_fqdn_hostnames" in launch.words(full, MPIRUN, [], 60)
    assert "prte_keep_fqdn_hostnames" in launch.words(full, replace(MPIRUN, version="5.0.6"), [], 60)
    assert not [word for word in launch.words(JOB, MPIRUN, [], 60) if "keep_fqdn" in word]


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
        tool = tmp_path / "usr/bin" / kind
        tool.parent.mkdir(parents=True)
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
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
        tool = tmp_path / place / "mpirun"
        tool.parent.mkdir(parents=True)
        tool.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.6'\n")
        tool.chmod(0o755)
    found = launch.read(Host(system_root=str(tmp_path)), "mpirun", library)
    assert (found.path, found.version) == (f"{tmp_path}{path}", "5.0.6")
    tool.chmod(0o777)
    if path.startswith("/opt"):
        with pytest.raises(ReadError, match="is not run as root"):
            launch.read(Host(system_root=str(tmp_path)), "mpirun", library)


def test_a_refusal_that_nobody_knows_is_quoted() -> None:
    said = launch.refusal(MPIRUN, 1, "line\nsomething odd\n")
    assert "something odd" in said
    assert "hostname in place of the program" in said
    assert "ssh-keyscan" in launch.refusal(MPIRUN, 255, "Host key verification failed.\r\nmore\n")
    # Of 64 nodes the one that is not known is told.
    unknown = "No ED25519 host key is known for node17 and you have requested strict checking.\r\n"
    changed = "Host key for node17 has changed and you have requested strict checking.\r\n"
    for line in (unknown, changed):
        said = launch.refusal(MPIRUN, 255, f"{line}Host key verification failed.\r\n")
        assert "node17" in said
        assert "ssh-keyscan" in said


# -- what the guards say ---------------------------------------------------------------------------------------------


def lines(*said: dict[str, Any]) -> str:
    return "".join(f"\n{rank_guard.MARK}{json.dumps(one)}\n" for one in said)


BEGIN = {
    "what": "begin",
    "host": "a",
    "rank": 0,
    "world": 1,
    "local_rank": 0,
    "job": "j",
    "pmix": True,
    "pid": 1,
    "cpus": "0",
    "gpus": 0,
    "visible": 0,
    "gpu": "",
    "numa": None,
    "gpu_cpus": "",
    "near": [],
    "order": "",
    "visible_devices": "",
}


def test_the_programs_output_is_what_is_left_without_the_guards_lines() -> None:
    end = {"what": "end", "host": "a", "rank": 0, "rc": 3, "why": "", "left": 0}
    views, text = rank_guard.parse(
        "first\n" + lines(BEGIN) + "second\nhalf" + lines(end)[1:] + "0: " + lines(BEGIN)[1:]
    )
    assert text == "first\nsecond\nhalf\n"
    assert [one.ending for one in views] == [Ending(3, "", 0), None]


@pytest.mark.parametrize(
    "said",
    [
        lines(BEGIN)[:-20],
        lines({**BEGIN, "host": "../etc"}),
        lines({**BEGIN, "rank": True}),
        lines({**BEGIN, "rank": 10**9}),
        lines({**BEGIN, "gpu": "x" * 3000}),
        lines({**BEGIN, "near": ["/dev/sda"]}),
        lines({**BEGIN, "what": "other"}),
        lines({"what": "end", "host": "a", "rank": 0, "rc": 0, "why": "", "left": 0}),
        lines(BEGIN, {"what": "variables", "host": "a", "rank": 0, "variables": {"PATH": "/"}}),
        lines(BEGIN, *[{"what": "rails", "host": "a", "rank": 0, "rails": {"mlx5_0": [1, 2]}}] * 3),
        lines(BEGIN, {"what": "rails", "host": "a", "rank": 0, "rails": {"mlx5_0": [1, -2]}}),
        rank_guard.MARK + "[" * 100_000,
    ],
)
def test_what_no_guard_has_printed_is_refused(said: str) -> None:
    with pytest.raises(ParseError):
        rank_guard.parse(said)


# -- the guard itself ------------------------------------------------------------------------------------------------


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
        tree = tmp_path / f"sys/devices/pci0000:{number}0/0000:{number}0:00.0"
        for device in (gpu, nic):
            (tree / device).mkdir(parents=True)
            (tree / device / "numa_node").write_text(f"{number}\n")
            (tree / device / "local_cpulist").write_text(f"{here}\n")
        links = {f"sys/bus/pci/devices/{gpu}": tree / gpu, f"sys/class/infiniband/mlx5_{number}/device": tree / nic}
        for link, target in links.items():
            (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / link).symlink_to(target)
        counters = tmp_path / f"sys/class/infiniband/mlx5_{number}/ports/1/counters"
        counters.mkdir(parents=True)
        for name in ("port_xmit_data", "port_rcv_data"):
            (counters / name).write_text("1000\n")
        information = tmp_path / f"proc/driver/nvidia/gpus/{gpu}/information"
        information.parent.mkdir(parents=True)
        information.write_text(f"Model: \t NVIDIA H200\nGPU UUID: \t GPU-{number}abc\nDevice Minor: \t {number}\n")
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / f"dev/nvidia{number}").write_text("")
    return tmp_path


def test_the_guard_says_where_the_rank_is_and_what_the_nics_have_counted(node: Path) -> None:
    counter = node / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    told = {"NCCL_DEBUG": "INFO", "NCCL_NET_PLUGIN": "hush", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    program = ["sh", "-c", f"echo 1250 >{counter}; echo $CUDA_DEVICE_ORDER; exit 3"]
    code, (found,), text = guard("--limit", "60", "--root", str(node), "--", *program, **told)
    assert (code, text, found.ending) == (3, "PCI_BUS_ID\n", Ending(3, "", 0))
    begin = found.begin
    assert (begin.gpus, begin.visible, begin.gpu, begin.numa, begin.near) == (2, 2, "0000:01:00.0", 0, ("mlx5_0",))
    assert (begin.rank, begin.world, begin.order) == (0, 1, "FASTEST_FIRST")
    assert found.variables is not None
    assert found.variables["NCCL_DEBUG"] == "INFO"
    assert "hush" not in str(found.variables)
    assert launch.moved([found])[begin.host] == {"mlx5_0": launch.Moved(1000, 0), "mlx5_1": launch.Moved(0, 0)}


@pytest.mark.parametrize(
    ("chosen", "visible", "gpu"),
    [("1,0", 2, "0000:11:00.0"), ("GPU-1", 1, "0000:11:00.0"), ("0,7", 1, "0000:01:00.0"), ("", 0, ""), ("-1", 0, "")],
)
def test_the_rank_has_the_gpu_that_cuda_would_give_it(node: Path, chosen: str, visible: int, gpu: str) -> None:
    _code, (found,), _text = guard("--limit", "60", "--root", str(node), "--", "true", CUDA_VISIBLE_DEVICES=chosen)
    assert (found.begin.visible, found.begin.gpu) == (visible, gpu)


def test_a_gpu_that_a_cgroup_hides_is_not_counted(node: Path) -> None:
    (node / "dev/nvidia0").unlink()
    _code, (found,), _text = guard("--limit", "60", "--root", str(node), "--", "true")
    assert (found.begin.gpus, found.begin.visible, found.begin.gpu) == (2, 1, "0000:11:00.0")


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
    launcher = subprocess.Popen(
        [sys.executable, "-c", start, *argv], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        wait("the program", lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
        keeper, program_pid = map(int, (tmp_path / "pids").read_text().split())
        pids = {"launcher": launcher.pid, "guard": int((tmp_path / "guard").read_text())}
        pids.update(keeper=keeper, program=program_pid)
        for victim in victims.split():
            os.kill(pids[victim], signal.SIGKILL)
        if victims == "guard keeper":
            # Then it is the kernel that ends the program, and nothing but that.
            wait("the program to end", lambda: program_pid not in at_work_in(tmp_path))
        else:
            wait("all to end", lambda: not {*at_work_in(tmp_path)} - {launcher.pid})
    finally:
        for pid in at_work_in(tmp_path):
            os.kill(pid, signal.SIGKILL)
        launcher.kill()
        launcher.communicate()


def at_work_in(folder: Path) -> list[int]:
    """Living processes whose working directory is the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(path / "cwd") == str(folder):
                found.append(int(path.name))
    return found


def test_a_program_that_is_not_there_is_said() -> None:
    assert guard("--limit", "60", "--root", "/", "--", "/no/such/program")[0] == rank_program.NOT_STARTED


def test_the_guard_runs_on_python_36() -> None:
    ast.parse(inspect.getsource(rank_program), feature_version=(3, 6))
