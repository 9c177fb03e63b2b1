# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who holds up a stopped job, by the flight recorder's dumps of its ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import recorder, recorder_dump, recorder_findings

from busbar import job_files
from busbar import recorder as command
from busbar.cli import main
from tests import goldens, readings

from .recorder_dumps import SECOND, as_json, dump, pickled

TWO = {"W": range(2)}
FOUR = {"W": range(4)}
CASES: dict[str, list[Any]] = {name: case for name, *case in readings.cases("recorder_dumps")}


def dumps_of(groups: dict[str, Any], ranks: Sequence[str | None], first: int = 0) -> dict[int, dict[str, Any]]:
    return {rank: dump(words, groups, rank, first) for rank, words in enumerate(ranks) if words is not None}


def judged(changed: dict[int, dict[str, Any]]) -> list[tuple[str, str, str]]:
    found = recorder.judge({rank: recorder_dump.Reader().read(pickled(data)) for rank, data in changed.items()}, {})
    return [(one.check.partition(".")[2], one.subject, one.state) for one in recorder_findings.findings(found)]


def test_records_that_are_missing_are_unknown() -> None:
    words = {0: "W5! W6!", 1: "W5! W6!"}
    overwritten = {rank: dump(of, TWO, rank, 90) for rank, of in words.items()}
    overwritten[1]["pg_status"]["22"]["last_completed_collective"] = 2
    assert judged(overwritten)[1:] == [("readable", "group W (default_pg)", "unknown")]
    # Without a list of records it is not known what a rank does, unless all of its work is done.
    bare = {rank: dump(of, TWO, rank) for rank, of in {0: "W1", 1: "W1 W2!"}.items()}
    del bare[1]["entries"]
    assert judged(bare) == [("readable", "rank 1", "unknown")]
    del bare[0]["entries"], bare[0]["pg_status"]
    assert judged(bare) == [("readable", "ranks 0-1", "unknown")]


def test_no_verdict_without_the_dump_of_each_rank() -> None:
    """A dump that was refused, or that lists nothing, is not a dump of a rank in which nothing waits."""
    read = {rank: recorder_dump.Reader().read(pickled(dump("W1", TWO, rank))) for rank in range(2)}
    assert command.verdict(recorder.judge(read, {}))[0] == job_files.OK
    assert command.verdict(recorder.judge(read, {"rank_7": "cut off"}))[0] == job_files.NOT_KNOWN
    read[1] = read[1]._replace(entries=None, status=None)
    found = recorder.judge(read, {})
    assert (command.verdict(found)[0], found.unlisted) == (job_files.NOT_KNOWN, (1,))


@pytest.mark.parametrize(("age", "rows"), [(3000, []), (3700, [("dumps", "rank 1"), ("readable", "rank 1")])])
def test_a_dump_of_an_earlier_run_accuses_no_rank(age: int, rows: list[tuple[str, str]]) -> None:
    dumps = {0: dump("W1 W2", TWO, 0), 1: dump("W1 W2", TWO, 1)}
    for one in dumps[1]["entries"]:
        one["time_created_ns"] -= age * SECOND
    assert [(check, subject.replace("the job", "rank 1")) for check, subject, _state in judged(dumps)] == rows


def test_a_release_that_hangs_is_named_where_no_rank_is_certain() -> None:
    dumps = {rank: dump("W1 W2!", TWO, rank) for rank in range(2)}
    for data in dumps.values():
        data["comm_lib_version"] = "2.28.9"
    assert [check for check, _subject, _state in judged(dumps)] == ["stuck", "release"]
    assert [check for check, _subject, _state in judged({0: dumps[0]})] == ["rank", "release"]
    dumps[1] = dump("W1", TWO, 1)
    assert [check for check, _subject, _state in judged(dumps)] == ["rank"]
    # Older releases of PyTorch call it otherwise, and a hostile one may hold anything.
    for name in ("nccl_version", "comm_lib_version"):
        data = dump("W1!", TWO, 0)
        del data["comm_lib_version"]
        data[name] = "2.28.9 \x1b[31m"
        assert [check for check, _subject, _state in judged({0: data})] == ["rank"]


# -- the command -------------------------------------------------------------------------------------------------------


def write(folder: Path, *case: Any, prefix: str = "nccl_trace_rank_", form: Any = pickled) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, data in dumps_of(*case).items():
        (folder / f"{prefix}{rank}").write_bytes(form(data))
    return folder


EXIT = {"ok": 0, "stopped": 2, "mismatch": 2, "cannot tell": 3}
# What it does not show is beside a collective that all ranks wait in.
EXITS = {"a dump that does not show whether it is launched": 2}


@pytest.mark.golden
@pytest.mark.parametrize("form", [pickled, as_json], ids=["pickle", "json"])
def test_what_is_printed(form: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for name, case in CASES.items():
        code = main(["diagnose", "--recorder", str(write(tmp_path / name, *case, form=form))])
        screen = capsys.readouterr().out
        assert code == EXITS.get(name, EXIT[screen.split(": ")[1]])
        assert len(screen.splitlines()) <= job_files.LINES
        written.append(f"== {name}\n{screen}")
    main(["diagnose", "--all", "--recorder", str(tmp_path / "late in one group because of another")])
    written.append(f"== everything\n{capsys.readouterr().out}")
    goldens.text("recorder", "\n".join(written))


def test_one_screen_has_twelve_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = {"W": range(60), **{chr(ord("A") + pair): (2 * pair, 2 * pair + 1) for pair in range(20)}}
    words = ["W1 " + (f"{chr(ord('A') + rank // 2)}1!" if rank % 2 else "") for rank in range(40)]
    write(tmp_path, groups, words)
    (tmp_path / "nccl_trace_rank_50").write_bytes(b"GIF89a")
    assert main(["diagnose", "--recorder", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == job_files.LINES
    assert lines[0] == "verdict: stopped: ranks 0,2,4,6,8,10,12,14 and more, 20 in all hold up the job"
    assert lines[-2] == "19 more findings: --all, or --json"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, *CASES["late in one group because of another"])
    assert main(["diagnose", "--json", "--recorder", str(tmp_path)]) == 2
    data = json.loads(capsys.readouterr().out)
    first, second = data["suspects"]
    assert (first["rank"], first["kind"], first["confidence"], first["causes"]) == (2, recorder.ABSENT, "certain", [])
    assert (first["group"], second["causes"]) == ({"name": "B", "description": "", "ranks": [1, 2]}, [2])
    assert [(wait["group"]["name"], wait["number"], wait["ranks"]) for wait in data["waits"]] == [
        ("A", 2, [0]),
        ("B", 1, [1]),
    ]
    assert (data["verdict"], data["complete"], data["dumps"], data["nccl"]) == ("stopped", True, [0, 1, 2], ["2.30.7"])
    assert [one["because"] for one in data["findings"]] == [None, "recorder.rank[live]@rank 2"]


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names end with the rank, in folders of hosts too; what is not a dump leaves its rank unknown."""
    write(tmp_path / "host1", FOUR, ("W1 W2",), prefix="_dump_")
    (tmp_path / "host1/fault_injection.log").write_text("Rank 3\n")
    write(tmp_path / "host2", FOUR, (None, "W1 W2"), prefix="comm_lib_trace_rank_")
    (tmp_path / "host2/rank2.json").write_bytes(as_json(dump("W1 W2", FOUR, 2)))
    (tmp_path / "host2/3.pickle").write_bytes(pickled(dump("W1 W2", FOUR, 3), 5))
    assert main(["diagnose", "--recorder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("facts: 4 of 4 dumps read, 1 group, 8 records")
    (tmp_path / "host2/3.pickle").write_bytes(b"\x80\x02cos\nsystem\n.")
    (tmp_path / "host2/rank2.json").unlink()
    os.mkfifo(tmp_path / "host2/rank2.json")
    assert main(["diagnose", "--json", "--recorder", str(tmp_path)]) == 3
    assert json.loads(capsys.readouterr().out)["refused"] == {
        "host2/3.pickle": "the dump of rank 3 was not read: the pickle has opcode 99: it is not plain data",
        "host2/rank2.json": "the dump of rank 2 was not read: it is not a regular file",
    }


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "has no file whose name ends with a rank, such as nccl_trace_rank_0"),
        (("nccl_trace_rank_1", "old_rank_1"), "are dumps of one rank: name a directory with the dumps of one job"),
        (None, "No such file or directory; check the path"),
    ],
)
def test_no_dumps_of_one_job(
    names: tuple[str, ...] | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names or ():
        (tmp_path / name).write_bytes(pickled(dump("W1", TWO, 1)))
    folder = tmp_path / "absent" if names is None else tmp_path
    assert main(["diagnose", "--recorder", str(folder)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("log", "--recorder", "dir"), ("--recorder", "dir", "--watch", "log")])
def test_logs_or_dumps(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *words]) == 1
    assert "name logs, or --recorder or --inspector and a directory" in capsys.readouterr().err


def test_many_late_ranks() -> None:
    """Half of the ranks are late: each finding names them briefly, and no work grows with their square."""
    groups, reader = {"W": range(600)}, recorder_dump.Reader()
    dumps = {rank: reader.read(pickled(dump("W1!" if rank % 2 else "", groups, rank))) for rank in range(600)}
    found = recorder.judge(dumps, {})
    assert len(found.roots) == 300
    assert max(len(one.have or "") for one in recorder_findings.findings(found)) < 300
    assert len(json.dumps(command.describe(found, command.Dumps(dumps, {}, 0)).data)) < 1 << 22
