# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Test that the default output of ``site.yml`` and of ``busbar drift`` is one screen, whatever was found."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted, hang, screen, terminal, verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils import measure as measure_plan

from busbar import cli, gate, measure
from busbar.command_line import print_list
from busbar.drift import text
from busbar.drift.history import History
from busbar.drift.run import HostResult
from busbar.preflight import command as preflight
from tests import goldens
from tests.unit.test_verdict import typed

from .test_drift_report import AGAIN, RUN, report

PLAIN = "run site.yml --tags mtu for this host"
FIX = "run site.yml --tags mtu -e busbar_max_disruption=link for this host"
RAIL = Finding("platform.rail_device", "rail 3", "drift", "critical", "a NIC", "none", "/sys", "why", "reseat rail 3")
MTU = Finding(
    "netdev_mtu.live", "0000:1b:00.0 mlx5_0 ens1", "drift", "major", "MTU 9000", "MTU 1500", "/sys", "why", FIX
)
FILE = Finding(
    *("nccl_conf.file", "/etc/nccl.conf", "drift", "minor", "as rendered", "absent", "/etc", "why"),
    fix="run site.yml --tags nccl_conf for this host",
    aspect="persisted",
)
PASSED = "a.b[live]@c"
ENTRY = {"check": "nccl_conf.*", "reason": "RMA 4711", "owner": "anna", "until": "2999-12-15"}

# What keeps a finding out of the row of another one.
OTHER: list[dict[str, Any]] = [{"fix": "run site.yml --tags mofed"}, {"state": "unknown"}, {"severity": "minor"}]
Hosts = dict[str, list[Finding]]


def hosts(number: int, *findings: Finding) -> Hosts:
    return {f"node{i:04}": [*findings] for i in range(1, number + 1)}


def different(number: int, *of: Finding) -> list[Finding]:
    """Findings that no action removes together, of long texts, in turn of the given ones."""
    return [
        replace(
            of[i % len(of)], check=f"{of[i % len(of)].check}_{i // len(of):03}", have="x " * 200, fix=f"part {i} " * 60
        )
        for i in range(number)
    ]


FRESH = [
    *(replace(MTU, subject=f"0000:{i}b:00.0 mlx5_{i} ens{i}") for i in range(8)),
    *(
        replace(MTU, aspect="persisted", subject=f"0000:{i}b:00.0 mlx5_{i} ens{i}", have=f"no MTU in {i}")
        for i in range(8)
    ),
    *different(20, MTU, FILE),
]
CASES: dict[str, Hosts] = {
    "1,000 hosts x 1 fault": hosts(1000, MTU),
    "1,000 hosts that each report another value": {
        host: [replace(RAIL, have=f"{i} lost")] for i, host in enumerate(hosts(1000))
    },
    "1 host x 500 faults": hosts(1, *different(498, RAIL), MTU, FILE),
    "40 hosts x 5 faults": hosts(40, *different(3, RAIL, MTU, FILE), MTU, FILE),
    "names that do not fold": {f"{i * 7919 % 10007:05}-{i:05}.example.org": [RAIL, MTU] for i in range(300)},
    "4 fresh nodes": hosts(4, *FRESH),
    "a cause and 16 consequences": hosts(2, RAIL, *(replace(MTU, subject=f"s{i}", because=RAIL.id) for i in range(16))),
    "empty": {},
    "all ok": hosts(300),
}


def of_site(found: Hosts, width: int, ended: bool = False, verbose: bool = False) -> str:
    results: dict[str, Any] = {
        host: {
            "x": {
                "findings": [finding.to_dict() for finding in findings],
                "passed": [PASSED],
                "repaired": [f"mtu.live[live]@{i}" for i in range(30)],
                "notes": ["of every host " * 20, f"of rack {host}-x"],
            }
        }
        for host, findings in found.items()
    }
    off = {host: {f"role{i}": f"busbar_role{i}" for i in range(9)} for host in found}
    roles = ["x", *(f"role{i}" for i in range(9))]
    judged = verdict.judge(typed(results), roles, partial=False, ended=ended, off=off)
    judged = verdict.accept(judged, {host: accepted.parse([ENTRY]) for host in found}, datetime.date(2026, 11, 21))
    return verdict.render(judged, True, width, ["/srv/inventory"], "", verbose)


def of_drift(found: Hosts, width: int, verbose: bool = False, **more: Any) -> str:
    of = [
        HostResult(
            host, "complete", tuple(findings), frozenset({PASSED}), "i", notes=("a note " * 20, f"of rack {host}-x")
        )
        for host, findings in found.items()
    ]
    data = report(*of, run=replace(RUN, simulated=True), **more)
    related = [
        {"state": "unreadable", "title": name, "why": "x " * 300} for name in ("fabric", "slow nodes", "repaired")
    ]
    return text.rendered({**data, "related": related}, AGAIN, width, verbose)


def height(shown: str, width: int) -> int:
    return sum(max(1, -(-len(line) // width)) for line in shown.splitlines())


def rows_of(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if re.match(f"({'|'.join(SEVERITIES)})  ", line)]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", CASES)
def test_the_default_output_is_one_screen_and_leaves_nothing_out_silently(name: str, width: int) -> None:
    found = CASES[name]
    for shown, standing in (
        (of_site(found, width), {h: [f for f in of if f.check[:9] != "nccl_conf"] for h, of in found.items()}),
        (of_site(found, width, ended=True), {}),
        (of_drift(found, width), found),
    ):
        assert height(shown, width) <= 24
        words = " ".join(shown.split())
        counts = {
            kind: int(number) for number, kind in re.findall(rf"(\d+) ({'|'.join(SEVERITIES)})\b", words.split("(")[0])
        }
        rows = rows_of(shown)
        hidden = re.search(r"^(\d+) more findings?: (.*)", shown, re.MULTILINE)
        assert sum(counts.values()) == len(rows) + (int(hidden[1]) if hidden else 0)
        ranks = [SEVERITIES.index(row.split()[0]) for row in rows]
        assert ranks == sorted(ranks)
        if hidden:
            assert "-v" in hidden[2]
            assert "FILE" in hidden[2]
        of_all = [finding for of in standing.values() for finding in of if finding.because is None]
        assert set(counts) >= {finding.severity for finding in of_all}
        if any(finding.because for of in standing.values() for finding in of):
            assert f"and {16 * len(found)} that follow" in words


PERSISTED = replace(MTU, aspect="persisted", have="no MTU", fix=PLAIN)
# What is one row, and what never is.
ROWS: dict[str, Hosts] = {
    "no finding": hosts(3),
    "one of four": {**hosts(3), "n9": [MTU]},
    "one of four, unknown": {**hosts(3), "n9": [replace(MTU, state="unknown")]},
    "accepted": hosts(40, FILE),
    "a number in the advice of each rail": {
        "n1": [replace(RAIL, subject=f"rail {i}", fix=f"reseat the cable of rail {i}") for i in range(8)]
    },
    # They differ in the value, and in the permission that the fix needs.
    "live and persisted": {"n1": [MTU, PERSISTED]},
    "four devices": {"n1": [replace(MTU, subject=f"0000:{i}b:00.0 mlx5_{i} ens{i}") for i in range(4)]},
    "other severity, state and action": {
        "n1": [replace(MTU, subject="a"), *(replace(MTU, subject="b " + next(iter(more)), **more) for more in OTHER)]
    },
    "live and persisted on all": hosts(40, MTU, PERSISTED),
}


@pytest.mark.golden
def test_both_commands_print_the_same_rows() -> None:
    written = []
    for name, found in ROWS.items():
        site, drift = of_site(found, 200), of_drift(found, 200)
        if name != "accepted":
            assert rows_of(site) == rows_of(drift)
            assert site.split("(")[0] == drift.split("(")[0]
        # What every host has alike, and commands, which name the checkout.
        left_out = ("note (", "repaired", "a run would", "off: ", "checked: ", "fabric: ", "slow nodes: ", "    $ ")
        lines = [line for line in (*site.splitlines(), "--", *drift.splitlines()) if not line.startswith(left_out)]
        written += [f"== {name}", *lines, ""]
    goldens.text("screen", "\n".join(written))
    assert of_site(hosts(3), 200, ended=True).startswith("VERDICT INCOMPLETE")


def test_a_row_has_a_command_that_is_complete() -> None:
    # All hosts of a run without --limit need none. The largest permission removes both parts.
    [command] = re.findall(r"\$ (ansible-playbook .*)", of_site(hosts(40, MTU, PERSISTED), 200))
    assert command.endswith("-i /srv/inventory --tags mtu -e busbar_max_disruption=link")
    # Where not all of them are bad, they go through a file, of all groups of the row.
    [command] = re.findall(r"\$ (busbar report .*)", of_drift({**hosts(40, MTU, PERSISTED), "well": []}, 200))
    groups = [group["fingerprint"] for group in report(HostResult("n1", "complete", (MTU, PERSISTED)))["groups"]]
    [names] = re.findall(r"--nodes (\S+) >", command)
    assert set(names.split(",")) == set(groups)
    assert command.endswith(f"--limit @nodes-{names}")


def test_verbose_prints_every_value_subject_note_and_fix() -> None:
    found = hosts(4, *FRESH)
    for shown in (of_site(found, 120, verbose=True), of_drift(found, 120, verbose=True)):
        words = " ".join(shown.split())
        for finding in FRESH:
            if finding.check.startswith("netdev"):
                assert finding.check in words
                assert " ".join(finding.fix.split()) in words
                assert finding.subject in words
        assert screen.CUT not in shown
        assert "more findings" not in shown
        assert all(f"of rack node{i:04}-x" in words for i in range(1, 4))


def test_texts_of_hosts_are_printable_and_do_not_make_the_screen_longer() -> None:
    hostile = replace(MTU, have="\x1b[2J\n" * 400, subject="a\x07" * 90, fix="\x9b" * 400)
    for shown in (of_site({"n1": [hostile]}, 80), of_drift({"n1": [hostile]}, 80)):
        assert all(line.isprintable() for line in shown.splitlines())
        assert height(shown, 80) <= 24
        json.dumps(shown).encode("ascii")


# -- the other commands ------------------------------------------------------------------------------------------------

REPORT = {
    "verdict": "HUNG",
    "simulated": False,
    "findings": [{**MTU.to_dict(), "host": f"n{i}", "subject": "x " * 90} for i in range(300)],
    "collect": [
        {"host": "n1", "pid": i, "gpu": 0, "why": "w", "state": "", "commands": ["c " * 60] * 5, "recorded": []}
        for i in range(8)
    ],
    "jobs": [],
    "hosts": {f"n{i}": f"no route {i}" for i in range(500)},
    "idle": [f"m{i * 7}" for i in range(500)],
}
STATE = {"at": 0.0, "stage": "health", "seconds": 1.5, "verdict": "fail", "action": "none", "said": ""}


def of_lint(folder: Path) -> object:
    lines = [f"NCCL_X{i}=1\nNCCL_DEBUG = {i}\nNCCL_IB_HCA=mlx5\nnccl_{i}\n" for i in range(300)]
    (folder / "nccl.conf").write_text("".join(lines))
    return cli.main(["lint", str(folder / "nccl.conf")])


def of_diagnose(folder: Path) -> object:
    lines = [f"n{i % 9}:{i}:{i} [0] NCCL WARN Call to {chr(97 + i % 26)}{i} failed: {'x ' * 80}\n" for i in range(900)]
    (folder / "log").write_text("".join(lines) + "RuntimeError: no\n")
    return cli.main(["diagnose", str(folder / "log")])


def of_gate(_folder: Path) -> object:
    found = {
        f"n{i}": {**STATE, "findings": [finding.to_dict() for finding in FRESH], "kept_out": {"reason": f"r {i} " * 40}}
        for i in range(60)
    }
    print(gate.text({**found, "m": None, "k": "no answer"}, terminal.WIDTH))
    return None


def of_measure(folder: Path) -> object:
    night: Any = object.__new__(measure._MeasureRun)
    night.__dict__.update(_arguments=SimpleNamespace(verbose=False), _paths=["/i"], _results=folder, _height=0)
    night.__dict__.update(_max_age=30, _budget=9)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure_plan, "plan_lines", lambda *_of: ["n" * 300] * 40)
        night._print_plan(None, 1.0, 0.0, True)
    results = {f"n{i}": HostResult(f"n{i}", "complete", (replace(MTU, have=f"{i}"),)) for i in range(300)}
    night._report(results)
    return None


def of_preflight(_folder: Path) -> object:
    nodes = [f"n{i}" for i in range(900)]
    outcome: Any = SimpleNamespace(
        exclude=dict.fromkeys(nodes[:300], "slow"),
        unknown={node: f"silent {node}" for node in nodes[300:600]},
        shared=lambda: [MTU] * 30,
        code=2,
    )
    preflight.print_outcome(outcome, nodes)
    return None


def of_history(folder: Path) -> object:
    with History.create(folder / "h") as nights:
        for _night in range(90):
            nights.begin(RUN)
    return cli.main(["report", "--history", str(folder / "h"), "--list"])


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "show",
    [
        *(of_lint, of_diagnose, of_gate, of_measure, of_preflight, of_history),
        lambda _folder: print(hang.text(REPORT, terminal.WIDTH)),
        lambda _folder: print_list([f"look at this: {i}" for i in range(900)], "-v", "doubt"),
        lambda _folder: print(screen.cut("row\n" * 900 + "in all\n", 80, "-v")),
    ],
)
def test_what_a_command_prints_of_much_is_one_screen_and_says_where_the_rest_is(
    show: Callable[[Path], object],
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for name in ("COLUMNS", "WIDTH"):
        monkeypatch.setattr(terminal, name, width)
    show(tmp_path)
    # The names of nodes for a script are a line, however long that is.
    lines = [line for line in "".join(capsys.readouterr()).splitlines() if line[:8] not in ("EXCLUDE=", "UNKNOWN=")]
    assert 0 < height("\n".join(lines), width) <= 24
    assert re.search(r"(\d more \w+|details).*: .", "\n".join(lines))
