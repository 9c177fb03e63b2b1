# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils import drift_timer
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.drift_timer import SERVICE, TIMER, TimerState
from ansible_collections.busbar.fabric.plugins.modules import drift_timer as module
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent
from hypothesis import given
from hypothesis import strategies as st

from busbar.drift import command
from tests import goldens, readings
from tests.trees import contents, put

GIVEN: dict[str, Any] = {name: option.get("default", "") for name, option in drift_timer.SPEC.items()}
GIVEN |= {"directory": "/srv/site", "command": ["/opt/busbar"], "inventory": ["inventory"]}
WANT = drift_timer.wanted(GIVEN)
RUNS = {"UnitFileState": "enabled", "ActiveState": "active"}
NEVER = {"Result": "success", "ExecMainStatus": "0", "ExecMainExitTimestampMonotonic": "0"}


def line(text: str, key: str) -> str:
    [found] = [line for line in text.splitlines() if line.startswith(f"{key}=")]
    return found.partition("=")[2]


def rendered(config: bool = False, **more: Any) -> dict[str, str]:
    want = drift_timer.wanted({**GIVEN, **more})
    assert want is not None
    return drift_timer.render(want, config)


OFF = {"UnitFileState": "", "ActiveState": "inactive"}
NONE: dict[str, str | None] = dict.fromkeys(drift_timer.OWN)
MEASURE: dict[str, Any] = {"measure_schedule": "*-*-* 03..05:00", "measure_options": ["--limit", "rack1"]}
RIGHT = TimerState({**NONE, **rendered()}, (RUNS, NEVER))
MEASURING = drift_timer.wanted({**GIVEN, **MEASURE})
TEXTS = rendered(**MEASURE)
THERE = replace(RIGHT, files=TEXTS, measure=(RUNS, {**NEVER, "Result": "exit-code", "ExecMainStatus": "2"}))
PLANS: dict[str, tuple[TimerState, Any]] = {
    "a fresh machine": (TimerState(NONE, (OFF, NEVER), user=False), WANT),
    "all is right": (RIGHT, WANT),
    "stopped": (replace(RIGHT, drift=({**RUNS, "ActiveState": "inactive"}, NEVER)), WANT),
    "disabled": (replace(RIGHT, drift=({**RUNS, "UnitFileState": "disabled"}, NEVER)), WANT),
    "another text": (replace(RIGHT, files={**RIGHT.files, TIMER: "x"}), WANT),
    "no inventory": (replace(RIGHT, missing=(("/srv/site/inventory", "it is not there"),)), WANT),
    "exit code 4": (replace(RIGHT, drift=(RUNS, {**NEVER, "Result": "exit-code", "ExecMainStatus": "4"})), WANT),
    "no resources": (replace(RIGHT, drift=(RUNS, {**NEVER, "Result": "resources"})), WANT),
    "ended well": (replace(RIGHT, drift=(RUNS, {**NEVER, "ExecMainExitTimestampMonotonic": "81"})), WANT),
    "absent": (RIGHT, None),
    "absent already": (TimerState(NONE, (OFF, NEVER)), None),
    "measuring, fresh": (replace(RIGHT, measure=(OFF, NEVER)), MEASURING),
    "measuring, and its run failed": (THERE, MEASURING),
    "measuring no longer": (THERE, WANT),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", PLANS)
def test_what_is_found_and_done(case: str) -> None:
    plan = drift_timer.plan(*PLANS[case])
    rows: list[Any] = [[one.check, one.subject, one.state, one.severity, one.have] for one in plan.findings]
    rows += [["changed" if change.after else "removed", change.path] for change in plan.changes]
    goldens.check("drift_timer", case, [*rows, *([*command.argv] for command in plan.commands)])


EVERY: dict[str, Any] = {"config": True, "notify": ["mail", "-s", "it's 100 % $HOME", "ops@example.org"]}
EVERY |= {"webhook_file": "/srv/hook", "options": ["--html", "/srv/drift-{date}.html"]}
EVERY |= {"environment": {"ANSIBLE_FORKS": 50}}
UNITS: dict[str, dict[str, Any]] = {"as given": {}, "measuring, too": MEASURE, "every option": EVERY}


@pytest.mark.golden
def test_units() -> None:
    """A unit that another case has alike is shown once."""
    written: dict[str, str] = {}
    for case, more in UNITS.items():
        for path, text in rendered(**more).items():
            # The first line has the version.
            written.setdefault(f"{path}\n{text.partition(chr(10))[2]}", case)
    goldens.text("drift_timer", "\n".join(f"== {case}: {unit}" for unit, case in written.items()))


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1))
def test_systemd_reads_every_word_as_it_was(word: str) -> None:
    try:
        text = rendered(options=[word])[SERVICE]
    except ParseError:
        assert not word.isprintable()
        return
    # Within double quotes systemd's backslash is the shell's.
    last = shlex.split(line(text, "ExecStart"))[-1]
    assert last.replace("%%", "%").replace("$$", "$") == word


@pytest.mark.parametrize(("more", "message"), readings.cases("drift_timer_refused"))
def test_what_cannot_be_meant_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ParseError, match=message):
        drift_timer.wanted({**GIVEN, **more})


def test_fewer_days_than_busbar_drift_takes_are_not_asked_for() -> None:
    assert drift_timer.LEAST_DAYS == command.LEAST_DAYS


def test_the_hour_of_the_check_is_no_intent_of_a_node() -> None:
    def digest(**values: str) -> str:
        return intent.digest({"profile": {}, "benchmark_runs": [], "values": values})

    assert digest(drift_timer_schedule="02:00", busbar_fabric="") == digest(busbar_fabric="")
    assert digest(busbar_fabric="infiniband") != digest(busbar_fabric="")


# A systemd that keeps what it was told in files.
SYSTEMCTL = """#!/bin/sh
echo "$@" >> {root}/calls
case "$1 $2" in
  "show busbar-drift.timer") cat {root}/timer;;
  "show busbar-drift.service") printf 'Result=success\\nExecMainStatus=0\\nExecMainExitTimestampMonotonic=0\\n';;
  enable*|restart*) printf 'UnitFileState=enabled\\nActiveState=active\\n' > {root}/timer;;
  disable*) test -e {root}{timer} && printf 'UnitFileState=\\nActiveState=inactive\\n' > {root}/timer;;
esac
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    put(root, "/usr/bin/systemctl", SYSTEMCTL.format(root=root, timer=TIMER), 0o755)
    refuse = '#!/bin/sh\ncase "$3" in never | "") echo no time >&2; exit 1;; esac\n'
    put(root, "/usr/bin/systemd-analyze", refuse, 0o755)
    put(root, "/usr/bin/getent", f"#!/bin/sh\ntest -e {root}/user || exit 2\n", 0o755)
    put(root, "/usr/sbin/useradd", f"#!/bin/sh\ntouch {root}/user\n", 0o755)
    put(root, "/timer", "UnitFileState=\nActiveState=inactive\n")
    put(root, "/opt/busbar", "", 0o755)
    put(root, "/srv/site/inventory/hosts.yml", "")
    return root


def call(root: Path, capsys: pytest.CaptureFixture[str], check_mode: bool = False, **more: Any) -> dict[str, Any]:
    arguments = {**GIVEN, **more, "system_root": str(root), "_ansible_check_mode": check_mode}
    capsys.readouterr()
    with patch_module_args({**arguments, "_ansible_remote_tmp": str(root)}), pytest.raises(SystemExit):
        module.main()
    return dict(json.loads(capsys.readouterr().out))


def test_check_mode_says_what_a_run_then_does_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: text for path, text in contents(root).items() if not path.endswith("/calls")}
    said = call(root, capsys, check_mode=True)
    assert {path: text for path, text in contents(root).items() if not path.endswith("/calls")} == before
    done = call(root, capsys)
    assert (done["changed"], done["findings"]) == (True, [])
    assert (done["repaired"], done["commands"], done["diff"]) == (said["repaired"], said["commands"], said["diff"])
    again = call(root, capsys)
    assert (again["changed"], again["findings"], again["commands"]) == (False, [], [])
    gone = call(root, capsys, state="absent")
    assert (gone["changed"], gone["findings"]) == (True, [])
    assert not (root / SERVICE[1:]).exists()
    assert not call(root, capsys, state="absent")["changed"]


def test_paths_that_are_not_there_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "opt/busbar").chmod(0o644)
    more: dict[str, Any] = {"inventory": ["inventory", "other"], "webhook_file": "/srv/hook"}
    more["notify"] = ["/opt/mail", "x"]
    first, *others = [(finding["subject"], finding["have"]) for finding in call(root, capsys, **more)["findings"]]
    assert first == ("/opt/busbar", "it cannot be executed")
    assert others == [(path, "it is not there") for path in ("/opt/mail", "/srv/site/other", "/srv/hook")]
    (root / "opt/busbar").chmod(0o755)
    (root / "srv/site/inventory").chmod(0o777)
    assert [finding["subject"] for finding in call(root, capsys)["findings"]] == ["/srv/site/inventory"]


def test_a_time_that_systemd_does_not_take_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for schedule in ("never", ""):
        said = call(root, capsys, schedule=schedule)
        assert said["msg"] == f"schedule is {schedule!r}: no time"
    assert not (root / SERVICE[1:]).exists()
