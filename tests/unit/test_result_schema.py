"""What a node may answer, and that one which answers anything else costs itself its verdict and nobody else."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema, validated_action

from tests.nested import changed

NIC = "0000:1a:00.0"
FINDING = Finding("platform.rail_pcie", f"{NIC} mlx5_9", "drift", "major", "x16", "x8", "sysfs", "why", fix="mend it")
PLAN = {
    **{key: [] for key in ("findings", "passed", "commands", "reboot_required", "withheld", "repaired", "notes")},
    "changed": False,
    "diff": [],
}
PLATFORM = {
    **PLAN,
    "findings": [FINDING.to_dict()],
    "passed": ["platform.gpu_count[live]@host", f"platform.rail_state[live]@{NIC}"],
}
RAIL = {
    "number": 3,
    "pci": NIC,
    "device": "mlx5_9",
    "netdev": "ens1f0np0",
    "link_layer": "Ethernet",
    "rate_gbps": 400.0,
    "address": "10.19.0.1",
    "mtu": 9000,
    "firmware": "28.43.8002",
    "psid": "MT_0000000838",
    "qos": "trust dscp, PFC 3, DSCP 26 to 3",
    "gpu": "0000:19:00.0",
    "gpu_index": 0,
}
RAIL_INFO = {**PLAN, "rail_info": {"product": "X", "driver": "mlx5_core 25.10", "rails": [RAIL], "missing": {"4": "?"}}}
RAIL_INFO["busy"] = ["a job"]
BUILD = {
    **PLAN,
    "build": {"format": 1},
    "path": "/opt/nccl-tests",
}


def refused(module: str, data: Any) -> str:
    with pytest.raises(codec.Invalid) as caught:
        result_schema.check(module, data)
    return str(caught.value)


def test_an_honest_answer_passes_as_it_is() -> None:
    for module, data in (("topology_info", PLATFORM), ("topology_info", RAIL_INFO), ("nccl_tests_build", BUILD)):
        assert result_schema.check(module, codec.read(json.dumps(data))) == data


def test_what_ansible_would_obey_is_dropped() -> None:
    orders = {
        "ansible_facts": {"busbar_findings_path": "/etc/cron.d/x", "ansible_connection": "local"},
        "add_host": {"host_name": "other", "groups": ["gpu_nodes"]},
        "add_group": "gpu_nodes",
        "ansible_stats": {"data": {"a": 1}},
        "_ansible_notify": ["handler"],
        "skipped": True,
        "unreachable": True,
        "results": [{"ansible_facts": {}}],
        "warnings": ["\x1b[2J"],
    }
    assert result_schema.check("topology_info", {**PLATFORM, **orders}) == PLATFORM


# Place in an answer -> what is refused there.
WRONG: dict[str, list[Any]] = {
    "findings": [None, {"a": 1}, [FINDING.to_dict()] * 2001],
    "findings[0]": [{**FINDING.to_dict(), "fix": ""}, {**FINDING.to_dict(), "id": "platform.other[live]@x"}],
    "findings[0].subject": [12, "x" * 50_000_000, f"{NIC} mlx5_9\n"],
    "findings[0].check": ["platform.rail_pcie\n"],
    "findings[0].state": ["OK", ["ok"]],
    "passed[0]": [{}, "\ud800"],
    "passed[1]": ["a\nb"],
    "notes": ["text"],
    "changed": [1],
    "rail_info.rails[0].address": ["-f", "node02", "10.0.0.1\n", "127.0.0.1", "224.0.0.1", "fe80::1%eth0"],
    "rail_info.rails[0].device": ["-d", "../mlx5"],
    "rail_info.rails[0].netdev": ["a/b", "-I", ".."],
    "rail_info.rails[0].pci": [f"{NIC}\n"],
    "rail_info.rails[0].rate_gbps": [float("nan"), float("inf")],
    "rail_info.rails[0].number": [True, 100],
    "rail_info.rails[0].mtu": [10**400],
    "rail_info.missing.'4'": [None],
    "path": ["../../root/.ssh/authorized_keys", "/a\n"],
}


@pytest.mark.parametrize("where", WRONG)
def test_what_does_not_fit_is_refused_with_its_place(where: str) -> None:
    module = "nccl_tests_build" if where == "path" else "topology_info"
    data = BUILD if module == "nccl_tests_build" else RAIL_INFO if "rail_info" in where else PLATFORM
    path = tuple(int(index) if index else key for index, key in re.findall(r"\[(\d)\]|(\w+)", where))
    for value in WRONG[where]:
        said = refused(module, changed(data, path, value))
        assert said.startswith(where + ": ")
        assert len(said) < 500
        assert said.isprintable()


def test_a_key_too_many_or_too_few_below_the_top_is_refused() -> None:
    more, less = {**RAIL, "more": 1}, {key: value for key, value in RAIL.items() if key != "pci"}
    said = [refused("topology_info", changed(RAIL_INFO, ("rail_info", "rails", 0), rail)) for rail in (more, less)]
    assert (said[0][:15], said[1]) == ("rail_info.rails", "rail_info.rails[0].pci: is missing")
    assert refused("slurm_node", PLAN) == "drained: is missing"
    assert refused("topology_info", [PLAN]) == "is list, expected a dictionary"
    # One that failed has nothing but its reason.
    assert result_schema.check("topology_info", {"failed": True, "msg": "why"}) == {"failed": True, "msg": "why"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ('[{"a": NaN}]', "NaN"),
        ('[{"a": -Infinity}]', "Infinity"),
        ('[{"findings": [], "findings": 1}]', "a key twice"),
        ("[" + "9" * 5000 + "]", "not JSON"),
        ('["' + "x" * (codec.LIMIT + 1) + '"]', "characters"),
        ("[1", "not JSON"),
        ("", "not JSON"),
    ],
)
def test_text_that_no_module_writes_is_refused(text: str, said: str) -> None:
    with pytest.raises(codec.Invalid) as caught:
        codec.read(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("check", "largest", "larger"),
    [
        (codec.text(), "x" * 65536, "x" * 65537),
        (codec.text(codec.LINE), "x" * 1024, "x" * 1025),
        (codec.whole(), 1 << 53, (1 << 53) + 1),
        (codec.many(codec.flag), [True] * 20000, [True] * 20001),
    ],
)
def test_a_value_has_a_largest_size(check: codec.Check, largest: Any, larger: Any) -> None:
    check(largest)
    with pytest.raises(codec.Invalid):
        check(larger)


def test_what_has_no_schema_has_a_depth() -> None:
    deep: Any = 1
    for _level in range(1000):
        deep = [deep]
    assert "nested" in refused("topology_info", {**PLATFORM, "draft": deep})
    assert "number" in refused("topology_info", {**PLATFORM, "draft": {"a": [1e999]}})


# -- the entrances -----------------------------------------------------------------------------------------------------

STEPS = [{"role": "platform", "module": "topology_info"}, {"role": "iommu", "module": "iommu"}]


def audited(text: str) -> dict[str, Any]:
    return host_audit.read(STEPS, {"stdout": text, "stderr": "", "rc": 0})


def test_the_audit_takes_a_valid_answer_behind_a_greeting() -> None:
    assert audited("hello\n" + json.dumps([PLATFORM, PLAN]) + "\n") == {"results": [PLATFORM, PLAN]}


def test_the_audit_names_what_is_not_valid() -> None:
    wrong = changed(PLATFORM, ("findings", 0, "state"), "fine")
    said = audited(json.dumps([wrong, PLAN]))["msg"]
    assert said.startswith("its result is not valid: topology_info.findings[0].state: is 'fine', expected drift or")
    assert audited(json.dumps([PLATFORM]))["msg"] == "its result is not valid: has 1 items, expected 2 at least"
    assert audited("[" * 100_000)["msg"] == "its result is not valid: it is nested too deeply"
    assert "exited with 0: nothing" in audited("")["msg"]
    assert "\\x1b" in audited("\x1b[2J")["msg"]


def gate(name: str, given: Any, background: bool = False, verbosity: int = 0) -> dict[str, Any]:
    """What an ordinary task's result is where the node has answered ``given``."""
    plugin: Any = object.__new__(validated_action.ActionModule)

    def ask() -> Any:
        if isinstance(given, BaseException):
            raise given
        return given

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(validated_action, "display", SimpleNamespace(verbosity=verbosity))
        done = validated_action.validate(plugin, name, ask, background)
    return done


def test_an_ordinary_task_is_asked_through_the_same_gate() -> None:
    assert gate("topology_info", {**PLATFORM, "ansible_facts": {"a": 1}}) == PLATFORM
    said = gate("topology_info", changed(PLATFORM, ("passed",), "all"))
    assert said == {"failed": True, "msg": "its result is not valid: passed: is 'all', expected a list"}
    assert gate("iommu", RecursionError()) == {
        "failed": True,
        "msg": "its result is not valid: it is nested too deeply",
    }
    nested: Any = []
    for _ in range(sys.getrecursionlimit()):
        nested = [nested]
    said = {**PLAN, "exception": "trace", "invocation": {"top": ["https://anna:hunter22@mirror/repo"]}}
    shown = gate("ofed", said, verbosity=3)
    assert (shown["exception"], shown["invocation"]) == ("trace", {"top": ["https://[redacted]@mirror/repo"]})
    assert gate("ofed", {**said, "invocation": nested}, verbosity=3)["failed"]
    assert "invocation" not in gate("ofed", said)


def test_a_module_that_breaks_off_is_a_sentence() -> None:
    again = "run it again for this host with -vvv"
    summary = SimpleNamespace(event=SimpleNamespace(msg="cannot convert\x1b[2J infinity"))
    said = gate("iommu", {"failed": True, "exception": summary})
    assert said == {"failed": True, "msg": f"the module itself failed: cannot convert\\x1b[2J infinity; {again}"}
    said = gate("iommu", {"failed": True, "exception": "Traceback\n  line 7\nValueError: no\n"})
    assert said["msg"] == f"the module itself failed: ValueError: no; {again}"
    assert gate("iommu", {"failed": True})["msg"] == f"the module itself failed: it gives no reason; {again}"


def test_what_goes_on_in_the_background_says_so_first() -> None:
    first = {"changed": True, "ansible_job_id": "j1.2", "results_file": "/root/.ansible_async/j1.2", "finished": 0}
    assert gate("perftest", {**first, "started": 1}, background=True)["ansible_job_id"] == "j1.2"
    assert gate("perftest", {**first, "ansible_job_id": "../x"}, background=True)["failed"]
    assert gate("perftest", {**first, "finished": 1}, background=True)["failed"]


def test_the_interpreter_that_the_control_node_found_is_kept() -> None:
    plugin: Any = object.__new__(validated_action.ActionModule)
    plugin._discovered_interpreter_key = "discovered_interpreter_python"
    plugin._discovered_interpreter = "/usr/bin/python3"
    forged = {**PLAN, "ansible_facts": {"discovered_interpreter_python": "/tmp/x"}}
    done = validated_action.validate(plugin, "iommu", lambda: forged)
    assert done["ansible_facts"] == {"discovered_interpreter_python": "/usr/bin/python3"}
