# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What site.yml costs where there is little or nothing to do, beside drift.yml in the same run. Never asserted.

    BUSBAR_BENCH_HOSTS=50,200 pytest -s tests/bench/test_site.py

A host that is as it should be answers the audit from a file, and has no other answer: who asks it for more fails here.
Those with a fault are nodes of their own, which do their work on this machine's cores.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.bench.conftest import CURVE, FORKS, HOSTS, ROUNDS, Show
from tests.bench.fleet import Fleet, Spent
from tests.bench.test_scale import MASTER, compared, nightly

# Of different roles, each repaired by site.yml without a disruption.
FAULTS = ("conf-removed", "rp-filter-strict", "qos-unit-disabled", "ecn-off", "mtu-not-persisted", "conf-mode")


def site(made: Fleet, inventory: Path, of: int) -> Spent:
    args = made.ssh_args(MASTER, **CURVE)
    own = {"ANSIBLE_SSH_ARGS": args, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
    return made.judged("site", inventory, of, "--forks", str(FORKS), **own)


@pytest.mark.parametrize("of", HOSTS)
def test_a_fleet_that_is_as_it_should_be(hosts: Fleet, show: Show, of: int) -> None:
    python = hosts.stored_python()
    runs = {"drift.yml": nightly(hosts, python, of)}
    runs["site.yml"] = partial(site, hosts, hosts.inventory(of, python), of)
    title = f"nothing to do, nodes that answer at once, {FORKS} at a time"
    costs = compared(show, title, of, runs, "converged", ROUNDS)
    show(f"site.yml / drift.yml: {costs['site.yml'].wall / costs['drift.yml'].wall:.2f} (target <= 1.3)")
    assert not played((hosts.top / "site.log").read_text())


@pytest.mark.parametrize("of", HOSTS)
def test_one_host_of_twenty_with_a_fault(hosts: Fleet, show: Show, of: int) -> None:
    faults = [*islice(cycle(FAULTS), max(1, of // 20))]
    inventory = hosts.with_faults(of, faults, hosts.stored_python())
    args = hosts.ssh_args(MASTER, **CURVE)
    runs = {
        "drift.yml": partial(hosts.drift, inventory, of, "--forks", str(FORKS), ANSIBLE_SSH_ARGS=args),
        "site.yml, which repairs": partial(site, hosts, inventory, of),
    }
    title = f"{len(faults)} hosts that work on this machine, each with a fault; one run"
    costs = compared(show, title, of, runs, "faults")
    of_role = played((hosts.top / "site.log").read_text())
    ratio = costs["site.yml, which repairs"].wall / costs["drift.yml"].wall
    show(f"site.yml / drift.yml: {ratio:.2f} (target <= 3)")
    plays = ", ".join(f"{role} {count}" for role, count in sorted(of_role.items()))
    show(f"{', '.join(faults)}: {sum(of_role.values())} role plays on {of} hosts: {plays}")


def played(log: str) -> Counter[str]:
    """role -> on how many hosts a task of it has run, in what Ansible's own callback prints."""
    seen: set[tuple[str, str]] = set()
    role = ""
    for line in log.splitlines():
        head = re.match(r"(?:TASK|RUNNING HANDLER) \[(?:([\w.]+) : )?", line)
        if head:
            # The table of the benchmark is printed once, for all hosts.
            role = "" if "Report |" in line else (head[1] or "").rpartition(".")[2]
        done = re.match(r"(?:ok|changed|failed|fatal): \[([^\] ]+)", line)
        if done and role:
            seen.add((role, done[1]))
    return Counter(role for role, _host in seen)
