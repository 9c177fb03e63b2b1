# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The role watch: its files, its unit, whether it runs and sees anything."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import written
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.watch import module, ring, service
from ansible_collections.busbar.fabric.plugins.module_utils.watch.program import Settings
from ansible_collections.busbar.fabric.plugins.module_utils.watch.service import OWN, PROGRAM, UNIT_FILE, ServiceState

from tests.trees import contents, put, tool

TEXTS = service.render(Settings())
RUNS = {"UnitFileState": "enabled", "ActiveState": "active", "ActiveEnterTimestampMonotonic": "5000000"}
OFF = {**RUNS, "UnitFileState": "", "ActiveState": "inactive"}
RIGHT = ServiceState(TEXTS, {PROGRAM: 0o755, UNIT_FILE: 0o644}, RUNS, 9000.0, 12.0)
FRESH = ServiceState(dict.fromkeys(OWN), dict.fromkeys(OWN), OFF)
START = ["daemon-reload", "enable", "restart"]
EDITED = replace(RIGHT, files={**TEXTS, PROGRAM: TEXTS[PROGRAM] + "#\n"})


@pytest.mark.parametrize(
    ("have", "wanted", "found", "commands"),
    [
        (FRESH, True, ["files drift", "running drift"], START),
        (RIGHT, True, [], []),
        (EDITED, True, ["files drift"], START),
        (replace(RIGHT, modes={PROGRAM: 0o777, UNIT_FILE: 0o644}), True, ["files drift"], START),
        (replace(RIGHT, unit={**RUNS, "ActiveState": "activating"}), True, ["running drift"], START[1:]),
        (replace(RIGHT, unit={**RUNS, "UnitFileState": "disabled"}), True, ["running drift"], START[1:]),
        (replace(RIGHT, unit={**OFF, "UnitFileState": "masked-runtime"}), True, ["running drift"], []),
        (replace(RIGHT, unit={}), True, ["running unknown"], []),
        (replace(RIGHT, sampled=None), True, ["samples unknown"], []),
        (replace(RIGHT, sampled=None, runs=None), True, ["samples unknown"], []),
        (replace(RIGHT, sampled=None, runs=30.0), True, [], []),
        (FRESH, False, [], []),
        (RIGHT, False, ["files drift"], ["disable", "daemon-reload"]),
        (replace(RIGHT, unit={}), False, ["files drift"], []),
    ],
)
def test_what_is_found_and_done(have: ServiceState, wanted: bool, found: list[str], commands: list[str]) -> None:
    plan = service.plan(have, TEXTS if wanted else {})
    bad = [f"{one.check.partition('.')[2]} {one.state}" for one in plan.findings if not one.ok]
    assert (bad, [command.argv[1] for command in plan.commands]) == (found, commands)
    assert bool(plan.changes) == ("files drift" in found)


def test_another_setting_is_drift_and_another_release_is_not() -> None:
    other = service.render(Settings(patience=600))
    assert [change.path for change in service.plan(RIGHT, other).changes] == [UNIT_FILE]
    older = {path: text.replace(written.RELEASE, "0.1.9", 1) for path, text in TEXTS.items()}
    assert older != TEXTS
    with pytest.raises(ParseError, match="inspector"):
        service.render(Settings(inspector="/raid/in spector"))
    assert "--inspector /raid/n-1" in service.render(Settings(inspector="/raid/n-1"))[UNIT_FILE]


SYSTEMCTL = """\
echo "$*" >> {root}/calls
case $1 in
show) grep -q restart {root}/calls && echo UnitFileState=enabled && echo ActiveState=active ||
    printf 'UnitFileState=\\nActiveState=inactive\\n'
    echo ActiveEnterTimestampMonotonic={started:.0f} ;;
esac
"""


def test_the_module_installs_and_removes_and_check_mode_does_not_lie(tmp_path: Path) -> None:
    tool(tmp_path, "usr/bin/systemctl", SYSTEMCTL.format(root=tmp_path, started=time.monotonic() * 1e6))
    host = Host(str(tmp_path), str(tmp_path))
    given = {name: option.get("default") for name, option in module.SPEC.items()} | {"enabled": True}
    predicted = module.work(host, given, True)
    assert not (tmp_path / PROGRAM[1:]).exists()
    done = module.work(host, given, False)
    assert (done["repaired"], done["findings"]) == (predicted["repaired"], [])
    assert [one["check"] for one in predicted["findings"]] == ["watch.files", "watch.running"]  # type: ignore[attr-defined]
    again = module.work(host, given, False)
    assert (again["changed"], again["findings"]) == (False, [])
    # Of a GPU under MIG nothing is known, and no job on it is judged.
    for values in (None, 1):
        ring.Ring(str(tmp_path / ring.FOLDER[1:])).add(time.time(), {"gpus": [["a", values, values, values]]})
        passed = "watch.samples[live]@busbar-watch.service" in module.work(host, given, True)["passed"]  # type: ignore[operator]
        assert passed is (values is not None)
    before = set(contents(tmp_path))
    module.work(host, {**given, "enabled": False}, False)
    assert {Path(path).name for path in before - set(contents(tmp_path))} == {"watch.py", "busbar-watch.service"}
    assert module.work(host, {**given, "enabled": False}, True)["changed"] is False


def test_the_installed_program_watches_by_the_systems_python(tmp_path: Path) -> None:
    smi = (
        f"#!{sys.executable}\nimport time\nwhile True:\n    print('00000000:1B:00.0, 1, 2, 70.0, 700.0', flush=True)\n"
    )
    tool(tmp_path, "nvidia-smi", smi + "    time.sleep(0.1)\n")
    # Others than root may change what is below /tmp, and root's watch would refuse it.
    trusting = TEXTS[PROGRAM].replace('"    return reason"', '"    return str()"')
    assert trusting != TEXTS[PROGRAM]
    put(tmp_path, "watch.py", trusting)
    argv = [sys.executable, "-I", "-S", str(tmp_path / "watch.py"), "--interval", "1"]
    argv += ["--folder", str(tmp_path / "ring"), "--nvidia-smi", str(tmp_path / "nvidia-smi")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as watch:
        end, records = time.time() + 600, list[str]()
        while not records and watch.poll() is None and time.time() < end:
            time.sleep(0.1)
            records = [line for file in (tmp_path / "ring").glob("*") for line in file.read_text().splitlines()]
        watch.terminate()
    assert json.loads(records[0])["gpus"] == [["0000:1b:00.0", 1.0, 2.0, 70.0]]
