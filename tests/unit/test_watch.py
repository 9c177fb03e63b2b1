# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Running jobs by utilisation and power of their GPUs; links; one day of both. tests/samples has captured jobs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import orphans, trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.watch import job_state, ports, program, read, ring
from ansible_collections.busbar.fabric.plugins.module_utils.watch.job_state import Gpu, Watcher
from ansible_collections.busbar.fabric.plugins.module_utils.watch.ring import FILE, HOURS, Ring
from hypothesis import given
from hypothesis import strategies as st

from busbar import cli

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 300.0
# Percent, percent of memory, watts of 700: a GPU that computes, that waits in a collective, that runs no kernel, that
# is late in every step, that sends small messages.
Values = tuple[float | None, float | None, float | None]
WORKS: Values
WAITS: Values
IDLE: Values
LATE: Values
SMALL: Values
UNREAD: Values
WORKS, WAITS, IDLE, LATE, SMALL = (98, 40, 650), (100, 0, 118), (0, 0, 117), (5, 2, 176), (60, 0, 150)
UNREAD = (None, None, None)


def gpu(number: int, values: Values, job: str = "Slurm job 7") -> Gpu:
    utilisation, memory, watts = values
    return Gpu(f"0000:{number:02x}:00.0", utilisation, memory, watts, 700.0, job, number, 4000 + number)


def watched(*spans: tuple[float, list[Values]], interval: float = 5.0) -> list[tuple[str, list[int]]]:
    """Kind and late ranks of what is reported. spans: seconds, and the values of each GPU."""
    watcher, at, found = Watcher(PATIENCE), 0.0, []
    for seconds, values in spans:
        end = at + seconds
        while at < end:
            begun, _ended = watcher.take(at, [gpu(number, of) for number, of in enumerate(values)])
            found += [(stall.kind, [late.rank or 0 for late in stall.late]) for stall in begun]
            at += interval
    return found


@pytest.mark.parametrize(
    ("spans", "events"),
    [
        ([(3600, [WORKS, WORKS])], []),
        ([(60, [WORKS] * 2), (400, [WAITS, IDLE])], [("rank stopped", [1])]),
        # Late by 30 ms in steps of 1, 6 and 60 ms, as measured on two H100 and H200.
        ([(60, [WORKS] * 2), (400, [(99, 1, 176), LATE])], [("rank late", [1])]),
        ([(60, [WORKS] * 2), (400, [(100, 4, 280), (17, 5, 284)])], [("rank late", [1])]),
        ([(60, [WORKS] * 2), (400, [(65, 17, 612), (100, 16, 620)])], [("rank late", [0])]),
        ([(60, [WORKS] * 8), (400, [(100, 4, 280)] * 7 + [(17, 5, 284)])], [("rank late", [7])]),
        ([(60, [WORKS] * 2), (200, [(65, 17, 612), (100, 16, 620)]), (200, [WORKS] * 2)], []),
        # One works, the other waits or does something else: the power differs.
        ([(1800, [(65, 17, 612), (100, 0, 130)])], []),
        ([(1800, [(60, 15, 600), (70, 15, 600)])], []),
        ([(60, [WORKS] * 8), (400, [WAITS] * 5 + [IDLE] + [WAITS] * 2)], [("rank stopped", [5])]),
        ([(60, [WORKS] * 8), (400, [WAITS] * 6 + [IDLE] * 2)], [("rank stopped", [6, 7])]),
        ([(60, [WORKS] * 2), (400, [WAITS, WAITS])], [("all wait", [])]),
        ([(60, [WORKS] * 2), (800, [IDLE, IDLE])], []),
        ([(60, [WORKS] * 2), (1000, [IDLE, IDLE])], [("no kernel runs", [])]),
        # A checkpoint, an evaluation, data, small messages: shorter than the patience, or somebody works.
        ([(60, [WORKS] * 2), (290, [WAITS, IDLE]), (60, [WORKS] * 2), (290, [WAITS, IDLE])], []),
        ([(60, [WORKS] * 2), (1800, [WAITS, WORKS])], []),
        ([(3600, [SMALL, SMALL])], []),
        # One look at a working job begins the time anew; what was not read is not held against it.
        ([(290, [WAITS, IDLE]), (5, [WORKS, IDLE]), (290, [WAITS, IDLE])], []),
        ([(3600, [WAITS, UNREAD])], []),
        # What counts is the last patience, not what a job did before: another rank is late after an hour of the first,
        # a rank stops after an hour without data, or one stops that was late.
        (
            [(3600, [(65, 17, 612), (100, 16, 620)]), (10, [WORKS] * 2), (330, [(100, 16, 620), (65, 17, 612)])],
            [("rank late", [0]), ("rank late", [1])],
        ),
        ([(3600, [IDLE, IDLE]), (310, [WAITS, IDLE])], [("no kernel runs", []), ("rank stopped", [1])]),
        ([(3600, [WAITS, (4, 0, 118)]), (330, [WAITS, IDLE])], [("rank late", [1]), ("rank stopped", [1])]),
        # A state that comes and goes is reported once in the patience.
        ([(5, [WORKS] * 2), *([(15, [WAITS, IDLE]), (5, [WAITS, (4, 0, 118)])] * 99)], [("rank late", [1])]),
        # Some samples in between say nothing else.
        ([(200, [WAITS, IDLE]), (20, [WAITS, WAITS]), (200, [WAITS, IDLE])], [("rank stopped", [1])]),
    ],
)
def test_what_is_reported_of_a_job(
    spans: list[tuple[float, list[Values]]], events: list[tuple[str, list[int]]]
) -> None:
    assert watched(*spans) == events


def test_a_stall_is_reported_once_and_its_end_too() -> None:
    watcher, found = Watcher(PATIENCE), []
    for number in range(300):
        values = [WAITS, IDLE] if 10 <= number < 200 else [WORKS, WORKS]
        found.append(watcher.take(number * 5.0, [gpu(0, values[0]), gpu(1, values[1])]))
    begun, ended = ([stall for both in found for stall in both[which]] for which in (0, 1))
    assert [(stall.kind, stall.since, stall.waiting) for stall in begun] == [("rank stopped", 45.0, ("0000:00:00.0",))]
    assert [(stall.kind, stall.at) for stall in ended] == [("rank stopped", 1000.0)]


def test_time_without_samples_is_no_stall() -> None:
    watcher, found = Watcher(PATIENCE), []
    for at in (0.0, 5.0, 250.0, 310.0, 320.0, 500.0, 505.0):
        found += watcher.take(at, [gpu(0, WAITS), gpu(1, IDLE)])[0]
    assert found == []


def test_jobs_are_judged_apart_and_gpus_without_one_are_none() -> None:
    watcher, found = Watcher(PATIENCE), []
    for number in range(100):
        of = [gpu(0, WAITS, "a"), gpu(1, IDLE, "a"), gpu(2, WORKS, "b"), gpu(3, IDLE, "")]
        found += watcher.take(number * 5.0, of)[0]
    assert [(stall.job, [late.pci for late in stall.late]) for stall in found] == [("a", ["0000:01:00.0"])]


def test_of_1000_jobs_with_healthy_phases_none_is_accused() -> None:
    """Phases of less than the patience in any order, with work between them."""
    for seed in range(1000):
        dice = random.Random(seed)
        spans: list[tuple[float, list[Values]]] = []
        for _phase in range(6):
            phase = [dice.choice([WAITS, IDLE, SMALL, WORKS, LATE]) for _gpu in range(4)]
            spans += [(dice.uniform(5, 290), phase), (dice.uniform(5, 60), [WORKS] * 4)]
        assert watched(*spans, interval=10.0) == [], seed


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("00000000:1B:00.0, 97, 27, 650.12, 700.00", Gpu("0000:1b:00.0", 97.0, 27.0, 650.12, 700.0)),
        ("00000000:1B:00.0, [N/A], [N/A], [Not Supported], 700.00", Gpu("0000:1b:00.0", None, None, None, 700.0)),
        ("00000000:1B:00.0, -1, 1e9, nan, 99999999", Gpu("0000:1b:00.0", None, None, None, None)),
    ],
)
def test_a_line_of_the_loop(line: str, found: Gpu) -> None:
    assert read.gpu_line(line) == found


@given(st.text(max_size=200))
def test_any_line_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ParseError):
        read.gpu_line(text)
    read.process_lines(text)
    read.xid_of(text)
    words = text.encode(errors="replace").split()
    read.job_of(text, words)
    read.rank_of(words)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        (b"HOME=/root\0RANK=12\0", 12),
        (b"RANK=0", 0),
        (b"SLURM_PROCID=3\0RANK=5\0", 5),
        (b"OMPI_COMM_WORLD_RANK=9\0", 9),
        (b"LOCAL_RANK=3\0", None),
        (b"RANK=1x\0", None),
        (b"RANK=99999999999\0", None),
        (b"SECRET=RANK=4\0", None),
        (b"", None),
    ],
)
def test_the_rank_of_a_process(environment: bytes, rank: int | None) -> None:
    assert read.rank_of(environment.split(b"\0")) == rank


@pytest.mark.parametrize(
    ("cgroup", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "Slurm job 4711"),
        (
            "0::/kubepods.slice/kubepods-pod12345678_1234_1234_1234_123456789abc.slice/cri-containerd-x.scope",
            "pod 12345678_1234_1234_1234_123456789abc",
        ),
        ("0::/system.slice/docker-" + "ab" * 32 + ".scope", "container abababababab"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "processes of PID 77"),
        ("", "processes of PID 77"),
    ],
)
def test_the_job_of_a_process(cgroup: str, job: str) -> None:
    assert read.job_of(cgroup, b"S 77 123 120 0".split()) == job


@pytest.mark.parametrize(
    ("stat", "job"),
    [(b"S 1 123 120 0", "session 120"), (b"S 1 2 9", "session 9"), (b"", ""), (b"S 77", ""), (b"S x y z", "")],
)
def test_children_of_init_are_one_job_by_their_session_alone(stat: bytes, job: str) -> None:
    assert read.job_of("", stat.split()) == job


def test_this_process_has_a_parent_and_variables() -> None:
    assert read.job_of("", orphans.read_stat(os.getpid())) == f"processes of PID {os.getppid()}"
    assert b"PATH" in {each.partition(b"=")[0] for each in orphans.environment(os.getpid())}


def test_processes_and_xids() -> None:
    text = "00000000:1B:00.0, 4711\nNo running processes found\nx, 1\n00000000:1C:00.0, -5\n"
    assert read.process_lines(text) == [(4711, "0000:1b:00.0")]
    assert read.xid_of("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>'") == ("0000:1b:00.0", 79)
    assert read.xid_of("NVRM: Xid (PCI:0000:1b:00 GPU-I:02): 94, pid=7, Contained") == ("0000:1b:00.0", 94)
    assert read.xid_of("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.") == ("0000:1b:00.0", 79)
    for text in ("NVRM: Xid (PCI:0000:1b:00): seventy", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 22013, Fatal"):
        assert read.xid_of(text) is None


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "events"),
    [
        ("AAAAAA", []),
        ("AAdAAA", ["link flapped"]),
        ("AAddddddddddddd", ["link down"]),
        ("AAddddddddddddddAA", ["link down", "link back"]),
        ("AA-----------------", ["link down"]),
        ("dddddddd", []),
        ("dddAAdA", ["link flapped"]),
        ("AA+A+A", ["link flapped", "link flapped"]),
        # Not read is not down.
        ("AA??????????????A", []),
    ],
)
def test_links(states: str, events: list[str]) -> None:
    """A: active, d: down, -: no such port, +: active, and it went down since the last look."""
    watcher, downed, found = ports.PortWatcher(60.0), 3, []
    for number, letter in enumerate(states):
        downed += letter == "+"
        state = {"d": "1: DOWN", "?": ""}.get(letter, "4: ACTIVE")
        found += watcher.take(number * 5.0, {} if letter == "-" else {"mlx5_0/1": read.Port(state, downed)})
    assert [event.kind for event in found] == events


# -- one day -----------------------------------------------------------------------------------------------------------


def records(folder: Path | str, since: float = 0.0) -> list[dict[str, object]]:
    return list(ring.read(Host(), since, str(folder)))


def test_a_torn_line_is_no_record_and_older_hours_go(tmp_path: Path) -> None:
    store = Ring(str(tmp_path / "ring"))
    for hour in range(HOURS + 5):
        store.add(3600.0 * hour, {"number": hour})
    last = max((tmp_path / "ring").iterdir())
    with last.open("a") as stream:
        stream.write('{"at": 9, "kind": "x"')
    assert len(list((tmp_path / "ring").iterdir())) == HOURS
    assert [record["number"] for record in records(tmp_path / "ring", 3600.0 * HOURS)] == [*range(HOURS, HOURS + 5)]
    assert last.stat().st_mode & 0o777 == 0o600


def test_a_flood_ends_with_its_hour(tmp_path: Path) -> None:
    store = Ring(str(tmp_path))
    for _record in range(100):
        store.add(10.0, {"text": "x" * 60_000})
    [file] = tmp_path.iterdir()
    assert FILE - 61_000 < file.stat().st_size <= FILE
    store.add(3700.0, {"text": "next"})
    assert [record["text"] for record in records(tmp_path, 3600.0)] == ["next"]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    store = Ring(str(tmp_path / "ring"))
    (tmp_path / "ring" / time.strftime("%Y%m%dT%H.jsonl", time.gmtime(10))).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        store.add(10.0, {})
    assert not (tmp_path / "target").exists()


# -- the program -------------------------------------------------------------------------------------------------------

SMI = """\
#!{python}
import os, sys, time
if "compute-apps" in sys.argv[1]:
    print("00000000:01:00.0, {pid}\\n00000000:02:00.0, {pid}")
    sys.exit()
open(__file__ + ".pid", "w").write(str(os.getpid()))
for sample in range({samples}):
    values = (("98, 40, 650.0", "97, 41, 640.0"), ("100, 0, 118.0", "0, 0, 117.0"))[sample >= 3]
    for number, of in enumerate(values, 1):
        print(f"00000000:{{number:02x}}:00.0, {{of}}, 700.00", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def settings(tmp_path: Path) -> program.Settings:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI.format(python=sys.executable, pid=os.getpid(), samples=10**6))
    tool.chmod(0o755)
    return program.Settings(0.1, 1.0, folder=str(tmp_path / "ring"), nvidia_smi=str(tool))


def test_a_stalled_job_is_named_with_its_process(settings: program.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "doubt", lambda *_paths: "")
    monkeypatch.setattr(program, "ASK_WAITING", 0.2)
    events: list[program.Event] = []
    end = time.time() + 600
    program.Watch(settings, events.append).run(lambda: bool(events) or time.time() > end)
    [event] = events
    assert event.kind == "rank stopped"
    assert event.details["late"] == (job_state.Late("0000:02:00.0", None, os.getpid()),)
    assert f"PID {os.getpid()}" in event.text
    stored = [record for record in records(settings.folder) if "kind" in record]
    assert [(record["kind"], record["text"]) for record in stored] == [(event.kind, event.text)]


def test_a_tool_that_ends_is_an_event_and_is_started_again(
    settings: program.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(settings.nvidia_smi).write_text(SMI.format(python=sys.executable, pid=1, samples=1))
    monkeypatch.setattr(trusted, "doubt", lambda *_paths: "")
    monkeypatch.setattr(program, "RESTART", 0.3)
    events: list[program.Event] = []
    program.Watch(settings, events.append).run(lambda: len(events) == 2)
    assert [event.kind for event in events] == ["blind", "blind"]


def test_without_a_driver_or_with_somebody_elses_tool_it_says_so(settings: program.Settings) -> None:
    with pytest.raises(ReadError, match="/none/nvidia-smi: is not an executable file"):
        program.Watch(settings._replace(nvidia_smi="/none/nvidia-smi"), print)
    if os.geteuid() == 0:
        os.chmod(settings.nvidia_smi, 0o777)
        with pytest.raises(ReadError, match="is not run as root, because"):
            program.Watch(settings, print)


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=7", "Xid", "0000:1b:00.0: Xid 79"),
        ("mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error, Bus stuck", "NIC", "0000:3b:00.0: "),
        ("mlx5_core 0000:3b:00.0 ens1f0np0: Link up", "", ""),
        ("usb 1-1: new device", "", ""),
    ],
)
def test_what_the_kernel_logs(
    settings: program.Settings, monkeypatch: pytest.MonkeyPatch, message: str, kind: str, text: str
) -> None:
    monkeypatch.setattr(trusted, "doubt", lambda *_paths: "")
    events: list[program.Event] = []
    watch = program.Watch(settings, events.append)
    monkeypatch.setattr(watch, "_kernel_messages", lambda: [f"{message}\n SUBSYSTEM=pci\n"])
    watch.take(5.0, [])
    assert [(event.kind, event.text[: len(text)]) for event in events] == ([(kind, text)] if kind else [])


def test_while_nothing_is_read_no_job_has_ended(settings: program.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "doubt", lambda *_paths: "")
    events: list[program.Event] = []
    watch = program.Watch(settings, events.append)
    gpus = [gpu(1, WAITS)._replace(job=""), gpu(2, IDLE)._replace(job="")]
    for number in range(17):
        watch.take(50.0 * number, gpus)
    # nvidia-smi hangs: neither its samples nor its processes are there.
    Path(settings.nvidia_smi).write_text("#!/bin/sh\nexit 9\n")
    for at in (805.0, 810.0):
        watch.take(at, [])
    watch.take(1200.0, gpus)
    assert [event.kind for event in events] == ["rank stopped"]


@pytest.mark.parametrize("step", [86400.0, -86400.0])
def test_a_clock_that_is_set_makes_no_stall_and_its_time_is_taken(
    settings: program.Settings, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    monkeypatch.setattr(trusted, "doubt", lambda *_paths: "")
    events: list[program.Event] = []
    watch, clock = program.Watch(settings._replace(patience=PATIENCE), events.append), time.time
    gpus = [gpu(1, WAITS)._replace(job=""), gpu(2, IDLE)._replace(job="")]
    started = time.monotonic()
    for number in range(55):
        if number == 20:
            monkeypatch.setattr(time, "time", lambda: clock() + step)
        watch.take(started + 10.0 * number, gpus)
    # 300 seconds after the first sample, whatever the clock did.
    assert [(event.kind, round(event.at - clock() - step, -2)) for event in events] == [("rank stopped", 300.0)]
    records = [float(str(record["at"])) for record in ring.read(Host(), 0.0, settings.folder)]
    assert len([at for at in records if abs(at - clock() - step) < 600]) > 4


@pytest.mark.skipif(os.geteuid() != 0, reason="others than root may keep the ring where they like")
def test_root_writes_no_ring_that_others_may_change(
    settings: program.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {settings.nvidia_smi: ""}
    monkeypatch.setattr(trusted, "doubt", lambda path, *_base: good.get(path, f"{path} is shared"))
    with pytest.raises(ReadError, match="ring: is not written to as root, because"):
        program.Watch(settings, print)


def test_a_planted_or_odd_record_is_none(tmp_path: Path) -> None:
    name = tmp_path / time.strftime("%Y%m%dT%H.jsonl", time.gmtime(10))
    odd = ["[" * 60_000, "3", *(f'{{"at": {at}}}' for at in ("Infinity", "NaN", "1e300", "-1", '"x"'))]
    name.write_text("\n".join([*odd, '{"at": 11}', ""]))
    assert records(tmp_path) == [{"at": 11}]


def test_the_last_days_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "--last", "--store", str(tmp_path / "none")]) == 1
    store = Ring(str(tmp_path))
    store.add(time.time() - 2 * 86400, {"kind": "old", "text": "old"})
    assert cli.main(["watch", "--last", "--store", str(tmp_path)]) == 0
    store.add(time.time(), {"kind": "Xid", "text": "0000:1b:00.0: Xid 79 \x1b[2J"})
    store.add(time.time(), {"gpus": []})
    assert cli.main(["watch", "--last", "--store", str(tmp_path)]) == 0
    none, shown = capsys.readouterr().out.splitlines()
    assert none == "no event in the last day"
    assert "Xid: 0000:1b:00.0: Xid 79" in shown
    assert "\x1b" not in shown


COMMAND = """\
import sys
from busbar import cli
from ansible_collections.busbar.fabric.plugins.module_utils.core import trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
trusted.doubt = lambda *_paths: ""
Host.tool = lambda *_name: sys.argv[1]
sys.exit(cli.main(["watch", "--interval", "1", "--store", sys.argv[2]]))
"""


def lives(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_whatever_ends_it_ends_its_tool(settings: program.Settings, number: int, code: int) -> None:
    argv = [sys.executable, "-c", COMMAND, settings.nvidia_smi, settings.folder]
    started, end = Path(f"{settings.nvidia_smi}.pid"), time.time() + 600
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stderr is not None
        assert watch.stderr.readline() == "busbar watch: every 1 s, Ctrl-C ends it\n"
        while not (started.exists() and started.read_text()) and time.time() < end:
            time.sleep(0.05)
        tool = int(started.read_text())
        assert lives(tool)
        watch.send_signal(number)
        assert watch.wait(600) == code
    while lives(tool) and time.time() < end:
        time.sleep(0.05)
    assert not lives(tool)
