# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.change.busy import KUBELET
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.limits import container_limits, container_runtimes
from ansible_collections.busbar.fabric.plugins.module_utils.limits import plan as host_limits
from ansible_collections.busbar.fabric.plugins.module_utils.limits.container_limits import DROPIN, Want
from ansible_collections.busbar.fabric.plugins.module_utils.limits.container_runtimes import DAEMON_JSON, Have
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_rows, goldens
from tests.trees import put

LIMITS = host_limits.LimitsWanted(1048576, 8 << 30)
WANT = Want(("docker", "containerd", "kubelet"), ("rdma/hca_shared_devices_a",), LIMITS)
UNIT = "/usr/lib/systemd/system/containerd.service"
GOOD_JSON, _LACKS = container_limits.edit("", WANT)
GOOD = Have(
    daemon_json=GOOD_JSON,
    mode=0o644,
    changed=1000.0,
    docker={"/usr/lib/systemd/system/docker.service": "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n"},
    containerd={UNIT: "[Service]\nLimitNOFILE=infinity\n", DROPIN: container_limits.render(WANT)},
    started={"dockerd": 1000.5, "kubelet": 900.0},
    registered={"nvidia.com/gpu": 8, "rdma/hca_shared_devices_a": 8},
)


def not_ok(have: Have, want: Want = WANT) -> dict[str, str]:
    plan = container_limits.plan(have, want).limit("none")
    return {f.check.partition(".")[2]: f.state for f in plan.findings if not f.ok}


THEIRS = """\
{
    "log-opts": {
        "max-size": "100m"
    },
    "default-shm-size": "64M",
    "data-root": "/scratch/düsseldorf"
}
"""
LATER = "/run/systemd/system/containerd.service.d/99-site.conf"
STOCK_UNIT = {UNIT: "[Service]\nLimitNOFILE=infinity\n"}
OWN_LIMITS = {UNIT: "[Service]\nLimitMEMLOCK=infinity:infinity\nLimitNOFILE=1048576\n"}
UNREAD = {"docker": Problem(DAEMON_JSON, "cannot be read: I/O error")}
# What a node has, what is wanted, and what a finding names.
CASES: dict[str, tuple[Have, Want, *tuple[str, ...]]] = {
    "everything": (GOOD, WANT),
    "nothing wanted": (GOOD, Want((), (), LIMITS)),
    "daemon.json unread": (replace(GOOD, daemon_json=None, problems=UNREAD), WANT),
    # Only a dockerd that was started later has the limits.
    "dockerd started later": (GOOD, WANT),
    "dockerd started before": (replace(GOOD, changed=1000.6), WANT, "1970-01-01T00:16:40Z"),
    "dockerd and no limits": (replace(GOOD, daemon_json=THEIRS), WANT),
    "no dockerd and no limits": (replace(GOOD, daemon_json=THEIRS, started={"kubelet": 1.0}), WANT),
    "fresh containerd": (replace(GOOD, containerd=STOCK_UNIT), WANT),
    "containerd whose unit has limits": (replace(GOOD, containerd=OWN_LIMITS), WANT),
    "containerd without a unit": (replace(GOOD, containerd={}), WANT),
    "resource not registered": (replace(GOOD, registered={"nvidia.com/gpu": 8}), WANT, "nvidia.com/gpu"),
    "resource without a device": (replace(GOOD, registered={WANT.resources[0]: 0}), WANT, "0 healthy devices"),
    "no resource ever": (replace(GOOD, registered=None), WANT, "no device plugin has ever registered"),
    # The checkpoint of a kubelet that does not run proves nothing.
    "no kubelet": (replace(GOOD, started={}), WANT),
}
for runtime in WANT.runtimes:
    missing = replace(GOOD, missing=(runtime,), daemon_json=None, containerd={})
    only = Want((runtime,), WANT.resources if runtime == "kubelet" else (), LIMITS)
    CASES[f"{runtime} not installed"] = (missing, only, "host_limits_container_runtimes")
for flag in (
    "ExecStart=/usr/bin/dockerd --default-ulimit=memlock=-1",
    'DOCKER_OPTS="--default-shm-size 1G"',
    "ExecStart=/usr/bin/dockerd --config-file /srv/docker.json",
):
    flagged = replace(GOOD, daemon_json=None, docker={"/etc/default/docker": flag})
    CASES[f"flag of dockerd: {flag}"] = (flagged, WANT, "/etc/default/docker: --")
for taken in ("LimitMEMLOCK=64M", "LimitMEMLOCK=", "LimitNOFILE=1024:1048576"):
    units = {**GOOD.containerd, LATER: f"[Service]\n{taken}\n"}
    CASES[f"later drop-in: {taken}"] = (replace(GOOD, containerd=units), WANT, LATER)


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_planned(case: str) -> None:
    have, want, *words = CASES[case]
    plan = container_limits.plan(have, want).limit("none")
    goldens.check("container_limits", case, golden_rows.plan(plan))
    text = "\n".join(f"{one.have} {one.fix}" for one in plan.findings)
    assert [word for word in words if word not in text] == []


def test_the_kubelet_and_its_resources_are_asked_for_together() -> None:
    for runtimes, resources in ((("kubelet",), ()), (("docker",), ("rdma/hca",))):
        with pytest.raises(ParseError, match="both or neither"):
            Want(runtimes, resources, LIMITS)


def test_limits_are_added_and_everything_else_keeps_its_place_and_indentation() -> None:
    after, lacks = container_limits.edit(THEIRS, WANT)
    assert lacks == ["memlock is not set", "nofile is not set", "default-shm-size is 64M"]
    assert list(json.loads(after)) == ["log-opts", "default-shm-size", "data-root", "default-ulimits"]
    assert json.loads(after)["default-ulimits"] == {
        "memlock": {"Name": "memlock", "Hard": -1, "Soft": -1},
        "nofile": {"Name": "nofile", "Hard": 1048576, "Soft": 1048576},
    }
    assert after.startswith('{\n    "log-opts": {\n        "max-size"')
    assert '"default-shm-size": "8G",\n    "data-root": "/scratch/düsseldorf"' in after


def test_what_the_file_says_already_is_not_touched() -> None:
    text = (
        '{"default-ulimits": {"memlock": {"name": "memlock", "hard": -1, "soft": -1},'
        ' "nofile": {"Name": "nofile", "Hard": 2000000, "Soft": 1048576}}, "default-shm-size": "16gb"}'
    )
    assert container_limits.edit(text, WANT) == (text, [])


@pytest.mark.parametrize(
    ("name", "limit", "kept"),
    [
        ("memlock", {"Name": "memlock", "Hard": -1, "Soft": 65536}, -1),
        ("memlock", {"Name": "memlock", "Hard": True, "Soft": -1}, -1),
        ("memlock", {"Hard": -1, "Soft": -1}, -1),
        ("nofile", {"Name": "nofile", "Hard": 2000000, "Soft": 1024}, 2000000),
        # More than the kernel allows: no container would start.
        ("nofile", {"Name": "nofile", "Hard": -1, "Soft": -1}, 1048576),
        ("nofile", [1024], 1048576),
    ],
)
def test_a_limit_that_is_too_low_or_malformed_is_replaced(name: str, limit: object, kept: int) -> None:
    data = json.loads(GOOD_JSON)
    data["default-ulimits"][name] = limit
    after, lacks = container_limits.edit(json.dumps(data), WANT)
    assert [lack.split()[0] for lack in lacks] == [name]
    assert json.loads(after)["default-ulimits"][name]["Hard"] == kept


def test_shared_memory_that_is_no_size_is_quoted_in_part_and_none_is_not_written() -> None:
    _after, lacks = container_limits.edit(json.dumps({"default-shm-size": "9" * 99 + "x"}), WANT)
    assert lacks[2:] == ["default-shm-size is " + "9" * 40]
    want = replace(WANT, limits=host_limits.LimitsWanted(1048576, 0))
    assert "default-shm-size" not in json.loads(container_limits.edit("", want)[0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"debug": true', "delimiter"),
        ('{"debug": true,}', "is not JSON that can be edited"),
        ("[]", "not a JSON object"),
        ('{"debug": true, "debug": false}', "'debug' comes twice"),
        ('{"default-ulimits": [1]}', "default-ulimits is not an object"),
        *((f'{{"a": {word}}}', f"{word} is not a number") for word in ("NaN", "1e999")),
        ("[" * 100000, "RecursionError|recursion"),
    ],
)
def test_a_file_that_dockerd_would_not_read_is_unknown_and_stays(text: str, says: str) -> None:
    with pytest.raises(ParseError, match=says):
        container_limits.edit(text, WANT)
    have = replace(GOOD, daemon_json=text)
    # No word of a restart: with this file dockerd would not come back.
    assert not_ok(have) == {"docker": "unknown"}
    assert not container_limits.plan(have, WANT).changed


def test_a_diff_shows_nothing_of_other_keys_and_the_mode_is_kept() -> None:
    theirs: dict[str, Any] = {
        "proxies": {"https-proxy": "http://ops:s3cr3t@proxy:3128"},
        "log-opts": {"splunk-token": "t0k3n"},
    }
    theirs |= {"default-shm-size": "64M"}
    [change] = container_limits.plan(replace(GOOD, daemon_json=json.dumps(theirs), mode=0o600), WANT).changes
    assert (change.path, change.mode, change.mode_before) == (DAEMON_JSON, 0o600, 0o600)
    diff = change.diff()
    assert not [word for text in diff.values() for word in ("proxy", "s3cr3t", "splunk", "t0k3n") if word in text]
    assert diff["before"] == '{\n  "default-shm-size": "64M"\n}\n(other keys are not shown)\n'
    assert '"default-shm-size": "8G"' in diff["after"]
    assert json.loads(change.after or "")["proxies"] == theirs["proxies"]


KEYS = st.sampled_from(["data-root", "debug", "default-shm-size", "default-ulimits", "é", "\\", "\ud800", "0"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, JSON, max_size=6), st.sampled_from([None, "  ", "\t"]))
def test_whatever_others_say_is_kept_and_a_second_edit_does_nothing(data: dict[str, Any], indent: str | None) -> None:
    if not isinstance(data.get("default-ulimits") or {}, dict):
        data["default-ulimits"] = {"core": data["default-ulimits"]}
    text = json.dumps(data, indent=indent)
    after, _lacks = container_limits.edit(text, WANT)
    assert container_limits.edit(after, WANT) == (after, [])
    after.encode()
    found = json.loads(after)
    ours = ("default-ulimits", "default-shm-size")
    assert [(k, v) for k, v in found.items() if k not in ours] == [(k, v) for k, v in data.items() if k not in ours]
    theirs = {k: v for k, v in (data.get("default-ulimits") or {}).items() if k not in ("memlock", "nofile")}
    assert {k: found["default-ulimits"][k] for k in theirs} == theirs
    assert [k for k in found if k in data] == list(data)


@given(st.text(max_size=200))
def test_any_text_is_edited_or_refused(text: str) -> None:
    try:
        after, _lacks = container_limits.edit(text, WANT)
    except ParseError:
        return
    assert container_limits.edit(after, WANT) == (after, [])


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Everything is installed, and dockerd has run since 2025."""
    for program in ("dockerd", "containerd", "kubelet"):
        put(tmp_path, f"/usr/bin/{program}", "#!/bin/sh\n", 0o755)
    put(tmp_path, UNIT, "[Service]\nLimitNOFILE=infinity\n")
    put(tmp_path, "/usr/lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd\n")
    put(tmp_path, DAEMON_JSON, THEIRS, 0o640)
    put(tmp_path, KUBELET, '{"Data":{"RegisteredDevices":{"rdma/hca_shared_devices_a":["0"]}}}')
    put(tmp_path, "/proc/stat", "btime 1735689600\n")
    for pid, name in ((2805, "kubelet"), (2820, "dockerd"), (2999, "dockerd")):
        put(tmp_path, f"/proc/{pid}/comm", f"{name}\n")
        put(tmp_path, f"/proc/{pid}/stat", f"{pid} ({name}) S {'0 ' * 18}{pid} 0\n")
    return tmp_path


def test_a_plan_of_its_own_result_is_empty_and_a_restart_is_pending(node: Path) -> None:
    host = Host(str(node), str(node))
    have = container_runtimes.read(host, WANT.runtimes)
    assert have.started == {"kubelet": 1735689628.05, "dockerd": 1735689628.2}
    assert not_ok(have) == {"docker": "drift", "docker_loaded": "withheld", "containerd": "drift"}
    apply.execute(host, container_limits.plan(have, WANT))
    after = container_runtimes.read(host, WANT.runtimes)
    assert (not_ok(after), container_limits.plan(after, WANT).changed) == ({"docker_loaded": "withheld"}, False)
    assert (node / DAEMON_JSON.lstrip("/")).stat().st_mode & 0o777 == 0o640
    put(node, "/proc/stat", "btime %d\n" % (os.stat(node / DAEMON_JSON.lstrip("/")).st_ctime + 1))
    assert not_ok(container_runtimes.read(host, WANT.runtimes)) == {}


def test_a_drop_in_of_etc_hides_that_of_the_package_and_the_names_order_them(node: Path) -> None:
    for folder, name in (("/usr/lib", "50-a"), ("/etc", "50-a"), ("/usr/lib", "60-b"), ("/run", "10-c")):
        put(node, f"{folder}/systemd/system/containerd.service.d/{name}.conf", "[Service]\n")
    found = container_runtimes.read(Host(str(node), str(node)), ("containerd",)).containerd
    assert [path.replace("systemd/system/containerd.service", "") for path in found] == [
        "/usr/lib/",
        "/run/.d/10-c.conf",
        "/etc/.d/50-a.conf",
        "/usr/lib/.d/60-b.conf",
    ]


def test_options_count_where_the_unit_reads_their_file(node: Path) -> None:
    host = Host(str(node), str(node))
    put(node, "/etc/default/docker", 'DOCKER_OPTS="--default-ulimit nofile=1024"\n')
    assert container_runtimes.flags(container_runtimes.read(host, ("docker",)).docker) == []
    put(node, "/etc/systemd/system/docker.service.d/a.conf", "[Service]\nEnvironmentFile=-/etc/default/docker\n")
    found = container_runtimes.flags(container_runtimes.read(host, ("docker",)).docker)
    assert found == ["/etc/default/docker: --default-ulimit"]


def test_each_runtime_has_its_own_problems(node: Path) -> None:
    (node / "usr/bin/containerd").unlink()
    put(node, KUBELET, '{"Data":')
    (node / DAEMON_JSON.lstrip("/")).write_bytes(b"\xff")
    have = container_runtimes.read(Host(str(node), str(node)), WANT.runtimes)
    assert have.missing == ("containerd",)
    sources = {runtime: problem.source for runtime, problem in have.problems.items()}
    assert sources == {"docker": DAEMON_JSON, "kubelet": KUBELET}
    assert not_ok(have) == {"docker": "unknown", "containerd": "drift", "kubernetes": "unknown"}
