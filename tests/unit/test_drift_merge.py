# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parts of a night, merged: what one run over all hosts would have said, or a refusal that names files and hosts."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.accepted import Acceptance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar import __version__
from busbar.cli import main
from busbar.drift import command, findings_part, inventory, lock, runner
from busbar.drift.findings_part import Part, PartError
from busbar.drift.history import History
from busbar.drift.inventory import Manifest
from busbar.drift.merge import join
from busbar.drift.run import ENDS, HostResult, Run
from tests.nested import changed, places

BAD = Finding("nccl_conf.file", "/etc/nccl.conf", "drift", "major", "as rendered", "absent", "s", "w", "f")
SITE_YML = replace(BAD, check="host_limits.login", fix="run site.yml --tags host_limits for this host")
CONSISTENT = "consistency.firmware[live]@rail 0"
NAMES = tuple(f"n{number:02}" for number in range(1, 31))
GROUP = Manifest(NAMES[:8], (), True, NAMES[:8], "d1")
RUN = Run(0, "2026-11-21T02:00:00Z", "2026-11-21T02:09:00Z", "done", "/i", None, __version__, "u", "c1", True, "minor")


def answers(names: tuple[str, ...] = GROUP.group) -> dict[str, HostResult]:
    return {name: HostResult(name, "complete", (), frozenset({BAD.id}), "one") for name in names}


def written(folder: Path, file: str, hosts: dict[str, HostResult], group: Manifest = GROUP, **more: Any) -> Path:
    path = folder / file
    path.write_text(findings_part.render(replace(RUN, **more), group, hosts))
    return path


def halves(folder: Path) -> tuple[Path, Path]:
    """Two parts that make the night of GROUP."""
    ill = HostResult("n02", "complete", (BAD,), frozenset(), "one")
    times: dict[str, Any] = {"started": "2026-11-21T02:01:00Z", "ended": "2026-11-21T02:10:00Z"}
    first = written(folder, "A", {**answers(NAMES[:4]), "n02": ill})
    return first, written(folder, "B", answers(NAMES[4:8]), **times)


def merged(*arguments: object) -> int:
    return main(["report", "--merge", *map(str, arguments)])


TEXTS = ["x", "1", "0000:1b:00.0 mlx5_0", "hunter22", "\x1b[2J\u202e", "https://anna:hunter22@h/x", "é"]
texts = st.sampled_from(TEXTS)
findings = st.builds(
    lambda check, subject, state, severity, have, site: Finding(
        check, subject, state, severity, "1", have, "s", "w", SITE_YML.fix if site else "look at it"
    ),
    st.sampled_from(["nccl_conf.file", "ofed.loaded", "platform.nvlinks"]),
    texts,
    st.sampled_from(["drift", "unknown", "withheld"]),
    st.sampled_from(["critical", "major", "minor"]),
    st.none() | texts,
    st.booleans(),
)
figures = st.fixed_dictionaries(
    {"busbw": st.floats(1, 400), "bar": st.none() | st.just(320.0), "finished": st.just(7), "simulated": st.just(True)}
)
said = st.fixed_dictionaries(
    {
        "findings": st.lists(findings, max_size=3).map(lambda found: [finding.to_dict() for finding in found]),
        "passed_ids": st.lists(texts.map("a.b[live]@{}".format), max_size=2),
        "intent": st.none() | st.just("one"),
        "busbw": st.dictionaries(st.just("all_reduce-8G"), figures),
        "notes": st.lists(texts, max_size=2),
        "end": st.none() | st.sampled_from(ENDS),
    }
)
# None: no answer of the host's is in the findings file of its run.
NOTHING = st.none() | st.integers() | st.just({"findings": 7})


@given(st.lists(said | NOTHING, min_size=1, max_size=30), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_partition_of_a_night_merges_to_what_one_run_says(of_hosts: list[Any], data: st.DataObject) -> None:
    names = NAMES[: len(of_hosts)]
    manifest = Manifest(names, ("hunter22",), True, names, "d1")
    given = {name: answer for name, answer in zip(names, of_hosts, strict=True) if answer is not None}
    whole = runner.results({"hosts": given}, manifest, {})
    shares = [data.draw(st.integers(0, 4)) for _ in names]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = []
        for share in data.draw(st.permutations(sorted(set(shares)))):
            mine = {host: whole[host] for host, of_host in zip(names, shares, strict=True) if of_host == share}
            paths.append(folder / f"part-{share}")
            paths[-1].write_text(findings_part.render(RUN, manifest, mine))
        joined = join(findings_part.read(paths), None, [], 3600)
        assert joined.hosts == whole
        assert [*joined.hosts] == [*whole]
        stored = []
        for number, hosts in enumerate((whole, joined.hosts)):
            with History.create(folder / f"{number}.sqlite") as nights:
                stored.append(json.dumps(command.store(replace(RUN, id=nights.begin(RUN)), hosts, nights, ["x"])))
    assert stored[0] == stored[1]


def test_every_output_and_the_exit_code_are_those_of_a_run(tmp_path: Path, capsys: Any) -> None:
    files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "junit", "prometheus", "markdown", "html")]
    assert merged(*halves(tmp_path), *files) == 2
    data = json.loads((tmp_path / "json").read_text())
    assert data["counts"]["hosts"] == {**dict.fromkeys(data["counts"]["hosts"], 0), "in_sync": 7, "drift": 1}
    assert (data["run"]["started"], data["run"]["ended"]) == ("2026-11-21T02:00:00Z", "2026-11-21T02:10:00Z")
    assert (data["run"]["inventory"], data["run"]["limit"], data["run"]["commit"]) == (["/i"], None, "c1")
    assert (data["simulated"], data["run"]["previous"]) == (True, None)
    assert 'busbar_drift_hosts{class="in_sync",simulated="true"} 7' in (tmp_path / "prometheus").read_text()
    for kind in ("junit", "markdown", "html"):
        assert "nccl\\_conf.file" in (text := (tmp_path / kind).read_text()) or "nccl_conf.file" in text
    assert "VERDICT NOT OK: 7 of 8 hosts ok, 7 checks passed, 1 major" in capsys.readouterr().out
    assert merged(*halves(tmp_path), "--fail-on", "critical") == 0
    until = Acceptance("nccl_conf.*", "", "r", "o", datetime.date(2026, 11, 21))
    known = {name: replace(host, acceptances=(until,)) for name, host in answers().items()}
    assert merged(written(tmp_path, "D", known)) == 0
    silent = {**answers(), "n07": runner.results({"hosts": {}}, GROUP, {})["n07"]}
    assert merged(written(tmp_path, "C", silent)) == 3


def test_what_mends_many_hosts_reads_their_names_from_the_same_files(tmp_path: Path, capsys: Any) -> None:
    group = Manifest(NAMES, (), True, NAMES, "d1")
    ill = {name: replace(host, findings=(SITE_YML,)) for name, host in answers(NAMES).items()}
    path = written(tmp_path, "a b", ill, group)
    assert merged(path) == 2
    listed = capsys.readouterr().out.split("$ ")[1].split(" > ")[0]
    assert listed.startswith(f"busbar report --merge '{path}' --nodes ")
    assert merged(path, "--nodes", listed.rpartition(" ")[2]) == 0
    assert capsys.readouterr().out.split() == [*NAMES]
    assert merged(path, "--nodes", "none") == 1


def test_hosts_that_were_compared_with_each_other_say_with_whom(tmp_path: Path) -> None:
    found = {name: replace(host, passed=frozenset({CONSISTENT})) for name, host in answers().items()}
    first = written(tmp_path, "A", {name: found[name] for name in NAMES[:3]})
    second = written(tmp_path, "B", {name: found[name] for name in NAMES[3:8]})
    joined = join(findings_part.read([first, second]), None, [], 3600)
    (note,) = joined.hosts["n02"].notes
    assert note == "compared with each other, and with no host of the other files: n[01-03] (consistency.*)"
    assert "n[04-08]" in joined.hosts["n04"].notes[0]
    # All in one part: nothing is left out.
    assert join(findings_part.read([written(tmp_path, "C", found)]), None, [], 3600).hosts == found


def test_a_merged_night_is_one_of_the_history_and_only_once(tmp_path: Path, capsys: Any) -> None:
    history = tmp_path / "d.sqlite"
    earlier = written(tmp_path, "E", answers(), started="2026-11-20T02:00:00Z", ended="2026-11-20T02:01:00Z")
    assert merged(earlier, "--history", history) == 0
    assert merged(*halves(tmp_path), "--history", history, "--json", tmp_path / "json") == 2
    data = json.loads((tmp_path / "json").read_text())
    assert (data["run"]["previous"]["id"], data["counts"]["new"]) == (1, 1)
    assert data["groups"][0]["origins"] == {"corrective": 1}
    capsys.readouterr()
    assert main(["report", "--history", str(history), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == data
    # Once more, and one that comes too late.
    for files in (halves(tmp_path), [earlier]):
        assert merged(*files, "--history", history) == 1
        assert "they are in it already, or are older than its last run: leave --history out" in capsys.readouterr().err
    with lock.held(lock.lock_file(history), "somebody"):
        assert merged(*halves(tmp_path), "--history", history) == 4
    with History.open(history) as nights:
        assert len(nights.runs()) == 2


def test_people_are_told_of_a_merged_night_and_of_one_that_is_none(tmp_path: Path) -> None:
    mail = f"dd status=none of='{tmp_path}/mail'"
    first, second = halves(tmp_path)
    assert merged(first, second, "--notify", mail) == 2
    told = (tmp_path / "mail").read_text().splitlines()
    assert told[1:] == ["major drift nccl_conf.file on n02 (new, never ok)", f"busbar report --merge {first} {second}"]
    assert merged(first, "--notify", mail) == 1
    assert (tmp_path / "mail").read_text() == "busbar report failed; its log has the reason\n"


SECOND = answers(NAMES[4:8])
REFUSED: list[tuple[dict[str, Any], dict[str, HostResult], str]] = [
    ({}, answers(NAMES[2:8]), "hosts in more than one file: n[03-04] in {A}, {B};"),
    ({}, answers(NAMES[4:7]), "hosts in none of the files: n08; audit them, too"),
    ({}, {**SECOND, **answers(("x9",))}, "hosts that the inventory does not expect: x9 in {B}"),
    ({"version": "0.1.0"}, SECOND, f"are of different versions of Busbar: version {__version__} and 0.1.0"),
    ({"commit": "c2"}, SECOND, "{A} and {B} are of different commits of the inventory: commit c1 and c2"),
    ({"commit": None}, SECOND, "commit c1 and unknown"),
    ({"digest": "d2"}, SECOND, "{A} and {B} are of different states of the inventory"),
    ({"digest": None}, SECOND, "digest d1 and unknown"),
    ({"inventory": ["/j"]}, SECOND, "{A} and {B} are of different inventories: paths /i and /j"),
    ({"group": [*NAMES[:9]]}, SECOND, "inventories with other nodes: nodes n[01-08] and n[01-09]; where"),
    ({"started": "2026-11-20T13:00:00Z"}, SECOND, "{B} was begun 2026-11-20T13:00:00Z and {A} ended"),
    ({"ended": "2026-11-21T14:00:01Z"}, SECOND, "more than 43200 seconds lie between"),
    ({"ended": "2026-11-21T01:00:00Z"}, SECOND, "{B} is not a findings file, or is incomplete: its run ended"),
    ({"ended": "yesterday"}, SECOND, "{B} is not a findings file"),
    ({"ended": None}, SECOND, "run.ended is NoneType, expected str"),
    ({"format": 2}, SECOND, "{B} has format 2, this Busbar reads 1"),
    ({"check_mode": False}, SECOND, "{B} is of a run that changes nodes"),
    ({"check_mode": 1}, SECOND, "check_mode is int, expected bool"),
    ({"expected": ["platform"]}, SECOND, "{A} and {B} checked different roles"),
    ({"left_out": ["mtu"]}, SECOND, "{B} leaves roles out (--tags or --skip-tags): mtu"),
    ({"hosts": {}}, SECOND, "{B} has no host"),
    ({"hosts": []}, SECOND, "hosts is list, expected dict"),
    ({"hosts": {"n05": {}, "n\x1b": {}, "n\\x1b": {}}}, SECOND, "two of its hosts have one name"),
    ({"run": None}, SECOND, "run is NoneType, expected dict"),
]


def altered(path: Path, more: dict[str, Any]) -> None:
    data = json.loads(path.read_text())
    for name, value in more.items():
        (data if name in data else data["run"])[name] = value
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(("more", "hosts", "says"), REFUSED, ids=[case[2][:50] for case in REFUSED])
def test_parts_that_make_no_night(more: Any, hosts: Any, says: str, tmp_path: Path, capsys: Any) -> None:
    first, second = halves(tmp_path)
    second = written(tmp_path, "B", hosts)
    altered(second, more)
    history = tmp_path / "d.sqlite"
    assert merged(first, second, "--history", history, "--json", tmp_path / "json") == 1
    error = capsys.readouterr().err
    assert says.format(A=first, B=second) in error
    assert error.startswith("busbar report: ")
    assert error.count("\n") == 1
    assert not history.exists()
    assert not (tmp_path / "json").exists()


def test_a_part_that_knows_nobody_beyond_itself_needs_the_inventory(tmp_path: Path, capsys: Any) -> None:
    path = written(tmp_path, "A", answers())
    altered(path, {"group": []})
    assert merged(path) == 1
    assert "does not list the hosts of its inventory: add -i INVENTORY" in capsys.readouterr().err


def test_slices_need_the_whole_inventory(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = halves(tmp_path)
    for path, names in zip(parts, (NAMES[:4], NAMES[4:8]), strict=True):
        altered(path, {"group": [*names], "inventory": ["/runner/inventory/hosts"], "digest": None})
    assert merged(*parts) == 1
    assert "name the whole of it with -i INVENTORY" in capsys.readouterr().err
    expected = {"all": replace(GROUP, secrets=("absent",)), "more": replace(GROUP, hosts=NAMES[:9])}
    monkeypatch.setattr(inventory, "read", lambda paths, limit: expected[limit or "all"])
    assert merged(*parts, "-i", "/site", "--json", tmp_path / "json") == 2
    text = (tmp_path / "json").read_text()
    assert json.loads(text)["run"]["inventory"] == ["/site"]
    # What the inventory holds in secret is taken out here, too.
    assert '"have": "[redacted]"' in text
    assert merged(*parts, "-i", "/site", "--limit", "more") == 1
    assert "hosts in none of the files: n09" in capsys.readouterr().err
    altered(parts[0], {"digest": "d2"})
    altered(parts[1], {"digest": "d2"})
    assert merged(*parts, "-i", "/site") == 1
    assert f"{parts[0]} is of another state of the inventory than -i has now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *((["--merge", "{A}", other], "are one file: name each file once") for other in ("{A}", "{link}")),
        (["--merge", "{A}", "{none}"], "none cannot be read: No such file"),
        (["--merge", "{A}", "/dev/zero"], "/dev/zero is not a regular file"),
        (["--merge", "{pipe}"], "pipe is not a regular file"),
        (["--merge", "{folder}"], "cannot be read: Is a directory"),
        (["--merge", "{A}", "{B}", "--run", "3"], "--run a past run"),
        (["--merge", "{A}", "{B}", "--list"], "--list a past run"),
        (["--merge", "{A}", "{B}", "--nodes", "x", "--history", "{none}"], "--nodes a past run"),
        (["--merge", "{A}", "{B}", "--limit", "n01"], "--limit selects hosts of an inventory: add -i INVENTORY"),
        (["--merge", "{A}", "{B}", "--since", "2026-11-01"], "there is no earlier run"),
        (["--merge", "{A}", "{B}", "-i", "/no/such"], "/no/such does not exist"),
        (["--fail-on", "major"], "--fail-on: only with --merge"),
        (["--keep-days", "9", "--notify-always"], "--keep-days, --notify-always: only with"),
        (["-i", "/no/such"], "/no/such does not exist"),
    ],
)
def test_a_command_line_that_names_no_night(arguments: list[str], says: str, tmp_path: Path, capsys: Any) -> None:
    first, second = halves(tmp_path)
    names = {"A": first, "B": second, "none": tmp_path / "none", "pipe": tmp_path / "pipe", "folder": tmp_path}
    names["link"] = tmp_path / "link"
    names["link"].symlink_to(first)
    os.mkfifo(names["pipe"])
    assert main(["report", *(word.format(**names) for word in arguments)]) == 1
    assert says in capsys.readouterr().err


def test_all_parts_together_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = halves(tmp_path)
    monkeypatch.setattr(findings_part, "BYTES", first.stat().st_size + second.stat().st_size - 1)
    with pytest.raises(PartError, match=f"{second}: all files together have more than"):
        findings_part.read([first, second])


def sound(path: Path) -> list[Part]:
    """The parts, or none where the file was refused with a sentence that names it."""
    try:
        return findings_part.read([path])
    except PartError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        return []


def test_a_file_that_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "A", answers(("n01",)))
    whole = path.read_bytes().rstrip()
    assert sound(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert not sound(path), size


WHOLE = json.loads(findings_part.render(RUN, GROUP, {**answers(), "n01": replace(answers()["n01"], findings=(BAD,))}))
ODD_TEXTS = ["\x1b[2J", "a" * 70000, "{{ lookup('pipe', 'id') }}"]
ODD: list[Any] = [None, True, 7, 1e400, -1, [], {}, [[]], {"x": {}}, *ODD_TEXTS]


@given(st.sampled_from([*places(WHOLE)][1:]), st.sampled_from(ODD))
@settings(max_examples=150, deadline=None)
def test_whatever_a_file_says_is_refused_or_costs_one_host_its_verdict(place: tuple[Any, ...], value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "A"
        path.write_text(json.dumps(changed(WHOLE, place, value)))
        parts = sound(path)
    try:
        joined = join(parts, None, [], 3600) if parts else None
    except PartError as error:
        joined = None
        assert str(path) in str(error) or "hosts in none of the parts" in str(error)
    if joined:
        assert [*joined.hosts] == [*GROUP.hosts] or place[:2] == ("run", "group")
        assert sum(host.end == "incomplete" for host in joined.hosts.values()) <= 1
        assert not any("\x1b" in str(host) for host in joined.hosts.values())


def test_a_name_that_stands_twice_is_no_answer(tmp_path: Path) -> None:
    path = written(tmp_path, "A", answers(("n01",)))
    path.write_text(path.read_text().replace("\n}}", ',\n"n01": {}}}'))
    with pytest.raises(PartError, match="'n01' is there twice"):
        findings_part.read([path])
