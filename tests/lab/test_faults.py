"""Every fault of the lab, alone and in company, is reported as declared, and nothing else; fives by host_audit, too."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command
from ansible_collections.busbar.fabric.plugins.module_utils.core.bundle import LIBRARY
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Session
from ansible_collections.busbar.fabric.plugins.plugin_utils import due_roles, suite

from lab import fault_changes, faults, store, tree
from lab.machines import hgx_b200
from tests import goldens, series, trees
from tests.lab import audited
from tests.lab.audited import sent
from tests.lab.transcript import snapshot

# Of the roles, in their order; the first only reports. Nothing is built or measured here.
MODULES = tuple(role.module for role in suite.AUDITED.values() if role.module not in ("nccl_tests_build", "nccl_perf"))
PLATFORMS = {"node01": "hgx-h100", "node02": "hgx-h200", "node03": "hgx-b200"}
# They stay converged: what a test leaves broken shows in the next one.
LAB = {**store.STANDARD, "node03": hgx_b200}
# Each on the first node that can have it; what a platform makes of the others' faults is seen in fives.
ALONE = [
    (next(node for node, platform in PLATFORMS.items() if platform in fault.platforms), name)
    for name, fault in faults.FAULTS.items()
    if not fault.measured
]


def _groups(most: int = 6) -> list[tuple[str, list[str]]]:
    """All of them in company: so many on a node as go together, but not more than ``most``."""
    found: list[tuple[str, list[str]]] = []
    for node, name in ALONE:
        fits = (of for at, of in found if at == node and len(of) < most and faults.compatible([*of, name]))
        group = next(fits, None)
        if group is None:
            found.append((node, [name]))
        else:
            group.append(name)
    return found


# Of the third those with a fault that no other node has.
ITS_OWN = {name for name, fault in faults.FAULTS.items() if fault.platforms == ("hgx-b200",)}
FIVES = [(node, seed) for node in ("node01", "node02") for seed in range(10)]
FIVES += [("node03", seed) for seed in range(100) if ITS_OWN & {*faults.draw(random.Random(seed), 5, "hgx-b200")}][:4]
# Roles that change nothing: what their findings advise is a person's work, or another role's.
SEEING = {"platform": "topology_info", "node_health": "node_health", "lldp": "lldp"}
# What a verdict takes from a role's result.
SAID = ("findings", "passed", "changed", "reboot_required", "withheld", "notes")
Answer = Callable[..., dict[str, Any]]
Audit = Callable[[str], tuple[list[dict[str, Any]], int]]
Work = Callable[[str], None]


@pytest.fixture
def steps() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def run_module(run_module: Answer, steps: list[dict[str, Any]]) -> Answer:
    """The same, and keeps what was asked."""

    def run(name: str, check_mode: bool = False, **arguments: Any) -> dict[str, Any]:
        steps.append({"module": name, "arguments": arguments})
        return run_module(name, check_mode, **arguments)

    return run


@pytest.fixture
def heard() -> dict[str, dict[str, Any]]:
    """Module -> what it said when the audit asked it."""
    return {}


class Reads(Session):
    def limit(self, argv: Sequence[str], seconds: float) -> float:
        return seconds


@contextmanager
def shared_reads() -> Iterator[None]:
    """Read the hardware once for all modules that are asked while nothing changes. In tests/site each reads it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "session", Reads())
        yield


@pytest.fixture
def audit(on_node: Answer, steps: list[dict[str, Any]], heard: dict[str, dict[str, Any]]) -> Audit:
    """All findings that are not ok, as a nightly check in check mode would see them, and how many checks passed."""

    def ask(node: str) -> tuple[list[dict[str, Any]], int]:
        steps.clear()
        with shared_reads():
            results = [on_node(module, node, check_mode=True) for module in MODULES]
        heard.update(zip(MODULES, results, strict=True))
        found = [finding for result in results for finding in result["findings"]]
        passed = [name for result in results for name in result["passed"]]
        every = [*(finding["id"] for finding in found), *passed]
        assert len(set(every)) == len(every), "an id has two states"
        return found, len(passed)

    return ask


@pytest.fixture
def work_here(on_node: Answer, heard: dict[str, dict[str, Any]]) -> Work:
    """What site.yml does on a node after the audit: plays the roles that are due, in their order.

    Of a role that is not, the audit's answer has to be what the role itself would have said at its turn. (Before
    anything was changed that is the same question, asked again.)
    """

    def work_on(node: str) -> None:
        roles = [role for role in suite.SUITE if role.play == "provision" and role.module in MODULES]
        due = [role.name for role in roles if due_roles.to_do(heard[role.module], check_mode=False)]
        said = {"roles": json.dumps({role.name: heard[role.module] for role in roles}), "due": due}
        of_host: dict[str, Any] = {"inventory_hostname": node, "fleet_audit_result": {"hosts": {node: said}}}
        changed = False
        with ExitStack() as unchanged:
            for role in roles:
                if due_roles.due(role.name, of_host):
                    unchanged.close()
                    of_host[role.result] = on_node(role.module, node)
                    changed = changed or of_host[role.result]["changed"]
                    unchanged.enter_context(shared_reads())
                elif changed:
                    itself = on_node(role.module, node, check_mode=True)
                    said_before = heard[role.module]
                    assert [itself.get(key) for key in SAID] == [said_before.get(key) for key in SAID], role.name

    return work_on


def identity(finding: dict[str, Any]) -> str:
    return str(finding["id"].split("@", 1)[1])


def compare(lab: Path, node: str, names: list[str], found: list[dict[str, Any]]) -> None:
    """Precision and recall 1.0: each declared root once, each consequence with its cause, and not one finding more."""
    expected = faults.expected(store.healthy(lab, node), names)
    by_id = {finding["id"]: finding for finding in found}
    roots = [finding for finding in found if finding["because"] is None]
    wanted = [expectation for expectation in expected if expectation.because is None]
    assert sorted(finding["check"] for finding in roots) == sorted(e.check for e in wanted)
    for expectation in wanted:
        same = [
            f
            for f in roots
            if f["check"] == expectation.check
            and f["state"] == expectation.state
            and expectation.subject in (None, identity(f))
        ]
        assert len(same) == 1, (expectation, roots)
    consequences = {(e.check, e.because) for e in expected if e.because is not None}
    seen = set()
    for finding in found:
        if finding["because"] is not None:
            root = by_id[finding["because"]]
            while root["because"] is not None:
                root = by_id[root["because"]]
            seen.add((finding["check"], root["check"]))
    assert seen == consequences


def row(finding: dict[str, Any]) -> list[Any]:
    """What of a finding holds whatever its sentences are."""
    because = finding["because"] and finding["because"].partition("@")[0]
    return [*(finding[key] for key in ("check", "aspect", "subject", "state", "severity")), because]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the converged nodes are, for all workers of a run: the first that comes converges them."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pristine"


@pytest.fixture
def converged(lab: Path, pristine: Path, on_node: Answer, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The three nodes, converged; what a test has done to its node, and had a role do there, is undone after it."""
    with open(pristine.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not pristine.exists():
            for node in PLATFORMS:
                for module in MODULES[1:]:
                    assert on_node(module, node)["findings"] == []
            # The unit of rail 0 has run, as at a boot.
            subprocess.run([lab / "node02/sys/usr/local/sbin/busbar-lab-roce", "add", "enp26s0np0"], check=True)
            shutil.copytree(lab, pristine, symlinks=True)
    mine = lab.with_name("mine")
    if not mine.exists():
        _take_back(lab, pristine, PLATFORMS)
        for node in PLATFORMS:
            # These name the node's roots.
            for path in ("usr/local/libexec/busbar/pcie-path", "etc/busbar/roce_qos.json"):
                (lab / node / "sys" / path).unlink(missing_ok=True)
            for module in ("pcie_path", "roce_qos"):
                assert on_node(module, node)["findings"] == []
        shutil.copytree(lab, mine, symlinks=True)
    yield lab
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    _take_back(lab, mine, [parameters["node"]] if "node" in parameters else PLATFORMS)


def _take_back(lab: Path, saved: Path, nodes: Iterable[str]) -> None:
    for node in nodes:
        trees.restore(saved / node, lab / node)


def test_healthy_nodes_have_nothing_to_report(converged: Path, audit: Audit) -> None:
    for node in PLATFORMS:
        found, passed = audit(node)
        assert found == []
        assert passed > 90


@pytest.mark.parametrize(("node", "names"), _groups())
def test_every_fault_is_found_in_company(converged: Path, audit: Audit, node: str, names: list[str]) -> None:
    for name in names:
        store.break_(converged, node, name)
    compare(converged, node, names, audit(node)[0])


@pytest.mark.golden
@pytest.mark.parametrize(("node", "name"), series.some(ALONE, 50))
def test_one_fault_is_exactly_its_finding(converged: Path, audit: Audit, on_node: Answer, node: str, name: str) -> None:
    store.break_(converged, node, name)
    found = audit(node)[0]
    compare(converged, node, [name], found)
    goldens.check("faults", f"{node} {name}", sorted(map(row, found), key=str))
    check = faults.FAULTS[name].check
    module = SEEING.get(check.partition(".")[0])
    if module is None:
        return  # test_advice.py, where a role's run is what is advised
    finding = next(one for one in found if one["check"] == check and one["because"] is None)
    told = fix_command.parse(finding["fix"])
    # Anything else that names it would be a command that nobody can copy.
    assert ("site.yml" in finding["fix"]) == (told is not None), finding["fix"]
    assert told is None or (not told.mends and set(told.tags) <= set(SEEING)), finding["fix"]
    # After a person's work, and whatever is run after it, which only looks, the same question has another answer.
    store.repair_broken(converged)
    assert check not in {one["check"] for one in on_node(module, node, check_mode=True)["findings"]}


@pytest.mark.parametrize(("node", "seed"), series.some(FIVES, 3))
def test_five_faults_at_once_are_exactly_their_findings(
    converged: Path,
    audit: Audit,
    work_here: Work,
    steps: list[dict[str, Any]],
    heard: dict[str, dict[str, Any]],
    node: str,
    seed: int,
) -> None:
    """The same that host_audit sends from the node; and what site.yml does then is what the roles would say."""
    names = faults.draw(random.Random(seed), 5, PLATFORMS[node])
    for name in names:
        store.break_(converged, node, name)
    compare(converged, node, names, audit(node)[0])
    assert sent(audited.ask(steps)) == sent(heard.values())
    work_here(node)


def test_another_index_of_a_gid_is_no_finding(converged: Path, audit: Audit) -> None:
    machine = store.healthy(converged, "node02")
    fault_changes.shift_gids(machine)
    tree.write_hardware(machine, converged / "node02/hw")
    found = audit("node02")[0]
    store.repair(converged, "node02")
    assert found == []


SEAL = re.compile(r"Written by Busbar (\S+), intent (\w{12}), sha256 (\w{32})")


def aged(text: str) -> str:
    """The same file, as an earlier release would have written it: with other words in its head."""
    found = SEAL.search(text)
    assert found is not None
    basis = f"0.0.9, intent {found[2]}"
    before, after = text[: found.start()], text[found.end() :].replace("(role", "(by the role", 1)
    total = hashlib.sha256(f"{basis}{before}Written by Busbar{after}".encode()).hexdigest()[:32]
    return f"{before}Written by Busbar {basis}, sha256 {total}{after}"


def own_files(converged: Path, node: str) -> dict[Path, str]:
    paths = [path for path in (converged / node / "sys").rglob("*") if path.is_file() and not path.is_symlink()]
    texts = {path: path.read_text(errors="replace") for path in paths if path.stat().st_size < 1 << 20}
    return {path: text for path, text in texts.items() if SEAL.search(text) and not path.name.endswith("~")}


@pytest.mark.golden
@pytest.mark.parametrize("node", PLATFORMS)
def test_the_files_of_a_converged_node(converged: Path, node: str) -> None:
    rows = []
    for path, text in sorted(own_files(converged, node).items()):
        name = str(path).partition(f"{node}/sys")[2]
        if not name.startswith(("/usr/local", "/var/lib")):  # programs, and what they have measured
            lines = text.replace(str(converged), "").splitlines()
            texts = [line for line in lines if line.strip() and line.lstrip()[0] not in "#;" and not SEAL.search(line)]
            rows += [f"{name}: {line}" for line in texts]
    goldens.check("converged", node, rows)


@pytest.mark.parametrize("node", series.some(["node02", "node01", "node03"], 1))
def test_an_upgrade_is_a_note_and_an_edit_without_effect_is_minor(
    converged: Path, audit: Audit, on_node: Answer, heard: dict[str, dict[str, Any]], node: str
) -> None:
    files = own_files(converged, node)
    assert len(files) >= {"node01": 12, "node02": 20, "node03": 9}[node], sorted(files)
    for older in (True, False):
        for path, text in files.items():
            commented = text if path.suffix == ".json" else text + "# mine\n"
            path.write_text(aged(text) if older else commented)
        found = audit(node)[0]
        notes = " ".join(note for result in heard.values() for note in result.get("notes", []))
        if older:
            assert found == []
            assert [path for path in files if str(path).partition(f"{node}/sys")[2] not in notes] == []
        else:
            programs = {one["check"] for one in found if one["severity"] != "minor"}
            assert programs <= {"roce_qos.unit", "pcie_path.unit"}
            assert {one["state"] for one in found} == {"drift"}
        for module in [module for module in MODULES if heard[module]["changed"]]:
            done = on_node(module, node)
            assert (done["findings"], done["changed"], on_node(module, node)["changed"]) == ([], True, False)
        assert own_files(converged, node) == files


UNSET = [
    *(("node01", name) for name in ("mofed_version", "busbar_nccl_version", "")),
    *(("node02", name) for name in ("busbar_roce", "busbar_mtu", "multirail_policy", "roce_qos_traffic_class", "")),
]


@pytest.mark.parametrize(("node", "name"), series.some(UNSET, 3))
def test_a_value_that_is_not_set_any_more_removes_nothing(
    converged: Path, audit: Audit, heard: dict[str, dict[str, Any]], node: str, name: str
) -> None:
    """name: of the value, "" for all but those without which a run stops."""
    kept = ("busbar_platform", "busbar_fabric", "busbar_hardware_root", "busbar_system_root")
    paths = [converged / "inventory" / part for part in ("hosts.yml", "group_vars/gpu_nodes.yml")]
    before = {path: path.read_text() for path in paths}
    try:
        for path, text in before.items():
            data = yaml.safe_load(text)
            values = data if "gpu_nodes" not in data else data["gpu_nodes"]["hosts"][node]
            for gone in [one for one in values if one == name or (not name and one not in kept)]:
                del values[gone]
            path.write_text(yaml.safe_dump(data))
        found = audit(node)[0]
    finally:
        for path, text in before.items():
            path.write_text(text)
    assert {module: result["diff"] for module, result in heard.items() if result["changed"]} == {}
    assert [one["id"] for one in found if one["state"] not in ("unknown", "not_owned")] == []


@pytest.mark.parametrize("node", series.some(["node02", "node01", "node03"], 1))
def test_a_check_writes_nothing_but_the_record_and_no_limit_of_the_run_changes_what_it_finds(
    converged: Path, on_node: Answer, node: str
) -> None:
    # What the stand-ins remember lies apart.
    before = snapshot(converged / node, "busbar-lab")
    for module in MODULES:
        more = {"record": True} if module == "node_health" else {}
        results = [on_node(module, node, True, **more)]
        if "max_disruption" in sys.modules[f"{LIBRARY}.{module}"].SPEC:
            results += [on_node(module, node, True, max_disruption=most) for most in ("none", "reboot")]
        assert all(result == results[0] | {"invocation": result["invocation"]} for result in results), module
    after = snapshot(converged / node, "busbar-lab")
    record = "sys/var/lib/busbar/health"
    assert {path for path in {*before, *after} if before.get(path) != after.get(path)} <= {
        *("sys/var/lib/busbar", "sys/var/lib", "sys/var", record, f"{record}/last.json"),
    }
    assert f"{record}/last.json" in after
