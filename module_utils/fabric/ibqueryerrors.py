# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse ibqueryerrors: counters of ports.

Without ``--counters`` it prints ports with errors: with thresholds of 0 a port that it leaves out has none, unless
stderr reports a failed query. ``--counters`` prints the data counters of every port. ``port ALL`` is a switch's sum.
Source: rdma-core infiniband-diags/ibqueryerrors.c.
"""

from __future__ import annotations

import re

from . import tool_output
from .sweep import MOST_COUNTERS, MOST_PORT_NUMBER, READ_COUNTERS
from .tool_output import ToolOutput

_HEADER = re.compile(r'(Errors|Data Counters) for (?:0x[0-9a-f]{1,16} )?".*"')
_PORT = re.compile(
    r"GUID 0x([0-9a-f]{1,16}) port ([0-9]{1,3}|ALL):((?: *\[[A-Za-z]\w{0,63} == [0-9]{1,20}(?: \([^()\]]*\))?\])*)",
    re.ASCII,
)
_COUNTER = re.compile(r"\[(\w+) == ([0-9]+)", re.ASCII)
_SUMMARY = re.compile(r"## Summary: [0-9]+ nodes checked, [0-9]+ bad nodes found")
_FAILURES = re.compile(r"## +([0-9]+) PMA query failures")
_UNREAD = re.compile(
    r"ibwarn: \[[0-9]+\] \w+: (\w+) query failed on .*, (?:DR path .*; )?Lid ([0-9]{1,5})(?: .*)? port ([0-9]{1,3})"
)
# libibmad's lines before the tool's own report of a failed query.
_NO_RESPONSE = re.compile(
    r"ibwarn: \[[0-9]+\] (?:_do_)?mad_?rpc: (?:_do_madrpc failed; dport \(.*\)|(?:recv|send) failed[:;] .*"
    r"|timeout after [0-9]+ retries, [0-9]+ ms|MAD completed with error status 0x[0-9a-f]+; dport \(.*\))"
)


def parse(text: str, stderr: str = "", source: str = "ibqueryerrors") -> ToolOutput:
    output = ToolOutput(source)
    failures = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        header, match, failed = _HEADER.fullmatch(line), _PORT.fullmatch(line), _FAILURES.fullmatch(line)
        if line.startswith("##"):
            output.clean = output.clean or _SUMMARY.fullmatch(line) is not None
            failures += int(failed.group(1)) if failed else 0
        elif header is not None:
            output.every = output.every or header.group(1) != "Errors"
        elif match is not None and match.group(2) == "ALL":
            continue
        elif match is None or int(match.group(2)) > MOST_PORT_NUMBER or match.group(3).count("[") > MOST_COUNTERS:
            if line and not line.startswith("Link info:"):
                output.odd(number, line)
        else:
            counters = output.counters.setdefault((tool_output.guid(match.group(1)), int(match.group(2))), {})
            found = _COUNTER.findall(match.group(3))
            counters.update({name: min(int(value), (1 << 64) - 1) for name, value in found if name in READ_COUNTERS})
    if not output.clean:
        output.cut = "it ends before its summary"
    others = []
    for line in map(str.strip, stderr.splitlines()):
        unread = _UNREAD.fullmatch(line)
        if unread is not None:
            query, lid, port = unread.groups()
            failures -= 1
            # Without the capabilities the tool goes on, port by port; without the sum of all ports (255) it does not.
            if query != "classportinfo":
                output.unread[int(lid), None if port == "255" else int(port)] = "its query failed (%s)" % query
        elif not _NO_RESPONSE.fullmatch(line):
            others.append(line)
    output.complain("\n".join(others))
    # A failed query that stderr does not name may be that of any port.
    output.clean = output.clean and not output.every and not output.odd_count and failures <= 0
    return output
