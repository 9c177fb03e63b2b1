# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host

from lab import store
from tests.drift.conftest import ROOT, argv, environment, hosts_of, write_inventory

Busbar = Callable[..., Any]
MARKUP = "<script>alert(1)<-script>"
PASSWORD = "hunter22-of-the-cluster"
VAULTED = "kept-in-a-vault"


def test_a_fleet_over_four_nights(lab: Path, busbar: Busbar, tmp_path: Path) -> None:
    inventory = lab / "inventory"
    first = busbar("drift", "-i", inventory, "--json", tmp_path / "1.json")
    assert (first.rc, first.err) == (2, "")
    data = json.loads((tmp_path / "1.json").read_text())
    assert data["simulated"] is True
    assert data["counts"]["hosts"]["drift"] == data["counts"]["total"] == 2
    assert {origin for group in data["groups"] for origin in group["origins"]} == {"never_ok"}
    conf = next(group for group in data["groups"] if group["check"] == "nccl_conf.file")
    assert (conf["nodes"], conf["new"]) == ("node[01-02]", "node[01-02]")
    assert not (lab / "node02/sys/etc/nccl.conf").exists()

    # What the report says to run, without the tag: everything at once, on one of the nodes.
    limit = ["--limit", "node01"]
    site = [str(Path(sys.executable).parent / "ansible-playbook"), "site.yml", "-i", str(inventory), *limit]
    config = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(site, cwd=ROOT, env=environment(tmp_path, **config), capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode()
    second = busbar("drift", "-i", inventory, *limit, "--fail-on", "critical", "-v")
    assert second.rc == 0, second.out
    assert second.out.startswith("VERDICT OK: 1 of 1 hosts ok, ")
    assert "(simulated)" in second.out
    assert "fixed: nccl_conf.file[persisted] on node01" in second.out

    store.break_(lab, "node01", "nvlink-down")
    files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "junit", "prometheus", "html")]
    mail = f"dd status=none of='{tmp_path}/a mail'"
    # Somebody's site.yml is at work there, and what is seen may be half done.
    other = node_lock.Run("20261122T010203Z-7", "anna", "elsewhere", "elsewhere 1", 7, 7)
    assert node_lock.acquire(Host("/", str(lab / "node01" / "sys")), other, 240, "", "").held
    third = busbar("drift", "-i", inventory, *limit, *files, "--notify", mail, "--keep-days", "8")
    assert third.rc == 2
    data = json.loads((tmp_path / "json").read_text())
    (group,) = data["groups"]
    assert (group["check"], group["nodes"], group["new"]) == ("platform.nvlinks", "node01", "node01")
    assert group["origins"] == {"corrective": 1}
    assert "platform.nvlinks" in (tmp_path / "html").read_text()
    (note,) = (note for note in data["notes"] if "works on the node" in note["text"])
    assert note["nodes"] == "node01"
    assert other.id in note["text"]
    assert f"note (node01): {note['text']}" in " ".join(busbar("report", "-v").out.split())
    assert 'busbar_drift_hosts{class="drift",simulated="true"} 1' in (tmp_path / "prometheus").read_text()
    history = tmp_path / "busbar-results" / "drift.sqlite"
    assert (tmp_path / "a mail").read_text().splitlines() == [
        data["headline"],
        "critical drift platform.nvlinks on node01 (new, corrective)",
        f"busbar report --history {history} --run 3",
    ]

    hosts = hosts_of(lab)
    hosts["node02"]["busbar_mtu_of_old"] = 1
    write_inventory(inventory, hosts)
    wrong = busbar("drift", "-i", inventory, "--json", tmp_path / "json", "--notify", mail)
    assert wrong.rc == 1
    assert (tmp_path / "a mail").read_text() == "busbar drift failed; its log has the reason\n"
    assert "busbar_mtu_of_old is not a variable of this suite" in wrong.err
    # The last good report stays.
    assert json.loads((tmp_path / "json").read_text()) == data
    listed = busbar("report", "--list").out.splitlines()
    assert [line.split()[2] for line in listed] == ["failed", "done", "done", "done"]

    # A limit, and what is accepted.
    accepted = [{"check": "platform.nvlinks", "owner": "anna", "reason": "RMA", "until": "2099-01-01"}]
    known = {"node01": {**hosts["node01"], "busbar_accepted": accepted}}
    known["node02"] = {k: v for k, v in hosts["node02"].items() if "mtu" not in k}
    write_inventory(inventory, {**hosts, **known})
    waived = [*limit, "--notify", mail]
    # With a configuration that does not know the checkout.
    (tmp_path / "own.cfg").write_text("[defaults]\nhost_key_checking = True\n")
    last = busbar("drift", "-i", inventory, *waived, ANSIBLE_CONFIG=str(tmp_path / "own.cfg"))
    assert last.rc == 0, last.out + last.err
    # A night that is well again is news, and its like is not.
    assert (tmp_path / "a mail").read_text().startswith("1 of 1 hosts checked in full; no drift found; 1 accepted")
    assert re.match(r"VERDICT OK: 1 of 1 hosts ok, \d+ checks passed, 1 accepted", " ".join(last.out.split()))

    # Any past night again.
    again = busbar("report", "--run", "3", "--json", "-")
    assert json.loads(again.out) == data
    assert busbar("report", "--run", "3", "--nodes", group["fingerprint"]).out == "node01\n"
    assert busbar("report", "--run", "3", "--nodes", "absent").rc == 1
    assert "run 4 is failed" in busbar("report", "--run", "4").err


def test_a_limit_without_a_host_is_refused(untouched: Path, busbar: Busbar, tmp_path: Path) -> None:
    done = busbar("drift", "-i", untouched / "inventory", "--limit", "nobody")
    assert done.rc == 1
    assert "leaves no host of the group gpu_nodes" in done.err
    assert not list(tmp_path.glob("busbar-results/*.sqlite"))


def hung_python(lab: Path) -> str:
    path = lab / "hung"
    path.write_text(f"#!/bin/sh\n: > {path}-begun\nexec sleep 1800\n")
    path.chmod(0o755)
    return str(path)


def test_hostile_hosts_secrets_and_hosts_that_do_not_answer(lab: Path, busbar: Busbar, tmp_path: Path) -> None:
    hosts = hosts_of(lab)
    vault = tmp_path / "vault-password"
    vault.write_text("pw")
    encrypt = [str(Path(sys.executable).parent / "ansible-vault"), "encrypt_string", "--name", "site_note", VAULTED]
    encrypted = subprocess.run(
        [*encrypt, "--vault-password-file", str(vault)], env=environment(tmp_path), capture_output=True, check=True
    ).stdout.decode()
    # What the first node's tools and files say: markup, an escape, and the secrets that a program may well repeat.
    hostile = f"{MARKUP}\x1b[2J {PASSWORD} {VAULTED}"
    (lab / "node01/hw/sys/class/infiniband/mlx5_4/ports/1/state").write_text(hostile)
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9, "busbar_platform": "hgx-h100"}
    hung = hung_python(lab)
    everybody = {
        "node01": {**hosts["node01"], "ansible_become_password": PASSWORD},
        MARKUP: hosts["node02"],
        "node03": {**gone, "busbar_fabric": "infiniband"},
        "node04": {**hosts["node01"], "ansible_connection": "local", "ansible_python_interpreter": hung},
    }
    write_inventory(lab / "inventory", everybody)
    (lab / "inventory" / "group_vars" / "all.yml").write_text(encrypted)
    files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "junit", "prometheus", "html")]
    words = ("drift", "-i", lab / "inventory", "--host-timeout", "120")
    done = busbar(*words, *files, ANSIBLE_VAULT_PASSWORD_FILE=str(vault))
    assert done.rc == 2, done.out + done.err
    data = json.loads((tmp_path / "json").read_text())
    ends = {"node01": "drift", MARKUP: "drift", "node03": "unreachable", "node04": "timed_out"}
    assert {name: host["class"] for name, host in data["hosts"].items()} == ends
    # Each at its own address.
    [lost] = {f["have"] for f in data["hosts"]["node03"]["findings"] if f["because"] is None}
    assert gone["ansible_host"] in lost
    state = next(f for f in data["hosts"]["node01"]["findings"] if MARKUP in (f["have"] or ""))
    assert "\\x1b[2J [redacted] [redacted]" in state["have"]
    everything = [(tmp_path / kind).read_text() for kind in ("json", "junit", "prometheus", "html")]
    everything += [done.out, done.err, "\n".join(sqlite3.connect(tmp_path / "busbar-results/drift.sqlite").iterdump())]
    for text in everything:
        assert PASSWORD not in text
        assert VAULTED not in text
        assert "\x1b" not in text
    page = (tmp_path / "html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert len(re.findall("<script", page)) == 2


def wait(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it never came")


def hang(lab: Path) -> dict[str, dict[str, Any]]:
    """Runs last until they are ended, however busy this machine is. Returns the hosts as they were."""
    hosts = hosts_of(lab)
    hung = hung_python(lab)
    silent = {name: {**host, "ansible_python_interpreter": hung} for name, host in hosts.items()}
    write_inventory(lab / "inventory", silent)
    return hosts


def test_a_killed_run_leaves_no_lock_and_no_half_night(lab: Path, busbar: Busbar, tmp_path: Path) -> None:
    drift = ["drift", "-i", str(lab / "inventory"), "--host-timeout", "1800"]
    history = tmp_path / "busbar-results" / "drift.sqlite"
    hosts = hang(lab)
    with subprocess.Popen(argv(*drift), cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL) as first:
        wait((lab / "hung-begun").exists)
        second = busbar(*drift)
        assert second.rc == 4
        said = r"another run holds .*drift\.sqlite\.lock: run of \w+, begun 20\d\d-.*; not started"
        assert re.search(said, second.err)
        assert "is running: it has no result yet" in busbar("report", "--run", "1").err
        first.kill()
        first.wait()
    # That nobody is left who asks hosts: test_kills.py.
    write_inventory(lab / "inventory", hosts)
    third = busbar(*drift)
    assert third.rc == 2
    listed = busbar("report", "--list").out.splitlines()
    assert [line.split()[2] for line in reversed(listed)] == ["interrupted", "done"]
    assert "killed before its end" in listed[-1]
    connection = sqlite3.connect(history)
    assert connection.execute("SELECT count(DISTINCT run), min(run) FROM host").fetchone() == (1, 2)


def test_a_run_that_is_told_to_end_says_so_in_the_history(lab: Path, busbar: Busbar, tmp_path: Path) -> None:
    history = tmp_path / "h.sqlite"
    hang(lab)
    drift = argv("drift", "-i", lab / "inventory", "--history", history)
    pipe = subprocess.PIPE
    with subprocess.Popen(drift, cwd=tmp_path, env=environment(tmp_path), stdout=pipe, stderr=pipe, text=True) as run:
        wait((lab / "hung-begun").exists)
        run.send_signal(signal.SIGTERM)
        told, said = run.communicate(timeout=1800)
    assert "no result: the run was ended before" in " ".join(told.split())
    assert "VERDICT INCOMPLETE, the run was ended before: 0 of 2 hosts ok" in " ".join(told.split())
    assert (run.returncode, said) == (1, "busbar drift: ended by SIGTERM\n")
    assert "interrupted" in busbar("report", "--list", "--history", history).out


def test_time_for_the_whole_run_leaves_every_host_without_an_answer(lab: Path, busbar: Busbar, tmp_path: Path) -> None:
    hang(lab)
    lost = ["--notify", "/no/such/mail", "--webhook", lab / "inventory" / "hosts.yml"]
    done = busbar("drift", "-i", lab / "inventory", "--timeout", "3", "--json", "-", *lost)
    assert done.rc == 3
    # Whether somebody could be told changes nothing.
    assert "busbar drift: the notification failed: /no/such/mail cannot be run: No such file" in done.err
    assert "hosts.yml: the address is not a URL" in done.err
    data = json.loads(done.out)
    assert data["counts"]["hosts"]["not_run"] == 2


def test_the_playbook_itself_refuses_to_change_anything(lab: Path, tmp_path: Path) -> None:
    program = str(Path(sys.executable).parent / "ansible-playbook")
    playbook = [program, "playbooks/drift.yml", "-i", str(lab / "inventory")]
    variables = environment(tmp_path, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), PATH=os.environ["PATH"])
    done = subprocess.run(playbook, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "runs with --check only" in " ".join(done.stdout.split())
    assert not (lab / "node01/sys/etc/nccl.conf").exists()
