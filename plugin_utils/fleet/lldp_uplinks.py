# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Attribute slow rails to uplinks between leaves, from the results of ``verify.yml`` and LLDP's leaves.

All pairs are tested at the same time. If every test within a leaf is at rate and some between leaves are not, the hosts
are proven and the uplinks are not: flows that hash onto the same uplink (ECMP), or a lost uplink. It is evidence, no
proof, so it is a note beside the findings of the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.perftest import RAIL_BANDWIDTH

# Tests, slow between leaves and at rate within them, below which the pattern may be chance.
SLOW, WITHIN = 2, 2
_SUBJECT = re.compile(r"rail ([0-9]{1,2}) to (.+)")
_PASSED = f"{RAIL_BANDWIDTH.id}[live]@"


@dataclass(frozen=True)
class Tested:
    """A test of one rail of a host to the same rail of a peer."""

    host: str
    rail: int
    peer: str
    slow: bool


def tests(host: str, findings: Iterable[Finding], passed: Iterable[str]) -> list[Tested]:
    """Return a host's tests with a figure, from its registered findings of verify, and the ids of ok checks."""
    said = [(one.subject, True) for one in findings if (one.check, one.state) == (RAIL_BANDWIDTH.id, "drift")]
    said += [(name.removeprefix(_PASSED), False) for name in passed if name.startswith(_PASSED)]
    found = ((_SUBJECT.fullmatch(subject), slow) for subject, slow in said)
    return [Tested(host, int(match.group(1)), match.group(2), slow) for match, slow in found if match is not None]


def evidence(tested: Sequence[Tested], leaves: Mapping[tuple[str, int], frozenset[str]]) -> dict[str, str]:
    """Return host with a slow test between leaves -> the sentence; {} without such evidence.

    leaves: names of those of a host's rail; of a bond those of all members.
    """
    known = [one for one in tested if (one.host, one.rail) in leaves and (one.peer, one.rail) in leaves]
    within = [one for one in known if leaves[one.host, one.rail] & leaves[one.peer, one.rail]]
    between = [one for one in known if not leaves[one.host, one.rail] & leaves[one.peer, one.rail]]
    slow = [one for one in between if one.slow]
    if len(slow) < SLOW or len(within) < WITHIN or any(one.slow for one in within):
        return {}
    first = min(slow, key=lambda one: (one.host, one.rail))
    said = (
        "%d of %d rail tests between leaves are slow, and none of %d within a leaf: that points to hashing (ECMP) or"
        " lost uplinks between leaves; a pair alone shows which: playbooks/verify.yml --limit %s,%s (docs/cabling.md)"
    ) % (len(slow), len(between), len(within), first.host, first.peer)
    return {one.host: said for one in slow}
