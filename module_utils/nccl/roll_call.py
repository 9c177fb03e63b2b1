# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Program of each node of a job in the roll call, sent there as ``python3 -c``: report its name and its gate's verdict.

    STATE

The gate's last verdict counts, which root has written into the file STATE, if it is of this boot and not old.

Requires Python 3.6 or later and its standard library.
"""

import json
import os
import socket
import sys
import time
from typing import List, Optional, Tuple

MARK = "#busbar-node "
PASSED, CRITICAL, NO_VERDICT = 0, 1, 2
# Hours from which on a verdict has nothing about a node.
OLD = 48
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def last(path: str) -> Tuple[Optional[int], str]:
    """Return exit code and text of the last verdict in a file; None if there is no gate."""
    try:
        with open(path, encoding="utf-8") as stream:
            state = json.loads(stream.read(1 << 20))
        with open(BOOT_ID, encoding="ascii") as stream:
            boot = stream.read().strip()
        verdict, hours = state["verdict"], (time.time() - float(state["at"])) / 3600
        worst = [one for one in state.get("findings") or [] if one.get("severity") == "critical"]
        said = "; ".join("%s of %s: %s" % (one["check"], one["subject"], one["have"]) for one in worst[:2])
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return NO_VERDICT, "%s cannot be read: %s" % (path, (getattr(error, "strerror", None) or error))
    if state.get("boot_id") != boot:
        return NO_VERDICT, "its last verdict is of an earlier boot"
    if not -1 <= hours <= OLD:
        return NO_VERDICT, "its last verdict is %.0f hours old" % hours
    found = {"pass": PASSED, "warn": PASSED, "fail": CRITICAL}.get(verdict, NO_VERDICT)
    return found, said or "its verdict is %s" % verdict


def main(argv: List[str]) -> None:
    gate, said = last(argv[0])
    told = {"node": os.environ.get("SLURMD_NODENAME", ""), "host": socket.gethostname(), "gate": gate}
    told["said"] = said[:300]
    os.write(1, ("\n%s%s\n" % (MARK, json.dumps(told))).encode("ascii"))


if __name__ == "__main__":
    main(sys.argv[1:])
