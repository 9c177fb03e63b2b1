# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what SHARP needs on a node: libraries, network plugins, variables, the aggregation manager's port.

Files are read and never loaded, no tool of SHARP is run (sharp_coll_test loads the link).
Sources: nccl-rdma-sharp-plugins 2f5ac02 (src/sharp_plugin.c), NCCL 2.30.7 (src/init.cc).
"""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import dataclass
from functools import partial
from typing import Callable, Dict, List, Optional, Tuple

from ..core.host import Host, ParseError, Problem, ReadError, attempt
from ..machine.profile import Profile
from ..nccl_conf import environment, grammar, net_plugins
from ..nccl_conf import library as nccl_library
from ..nccl_conf.environment import Setting

CONF = "/etc/nccl.conf"
# TCP port of sharp_am, over IPoIB.
PORT = 6126
# Seconds for its response.
ANSWER = 3.0
COLL = "libsharp_coll.so"
# Where NVIDIA's packages and HPC-X put it; "*" is one name. Plugins lie where those of any network do.
_PLACES = ("/opt/mellanox/sharp/lib", "/opt/hpcx*/sharp/lib", "/usr/local/hpcx*/sharp/lib", *net_plugins.PLACES)
_PLUGIN = re.compile(r"libnccl-net(?:-[\w.-]{1,64})?\.so(?:\.[\d.]{1,20})?$")
_SYMBOL = re.compile(rb"\0(ncclCollNetPlugin_v\d{1,3})\0")


@dataclass(frozen=True)
class SharpWanted:
    """profile: for the site's fabric.   directories: where library and plugin lie; empty: the usual places.

    manager: HOST or HOST:PORT of sharp_am; "" not given.   nodes: most nodes of a job; 0 not given.
    """

    profile: Profile
    directories: Tuple[str, ...] = ()
    manager: str = ""
    nodes: int = 0


@dataclass(frozen=True)
class File:
    """A network plugin.   version: the newest ncclCollNetPlugin_v*, "" without CollNet."""

    path: str
    version: str = ""


class SharpState:
    """State of a node. libraries, plugins: of SHARP.

    variables: name -> where it is set, for all jobs or some.
    answered: the aggregation manager's port: "" it accepted a connection, else the error; None not tested.
    """

    def __init__(self, host: Host, want: SharpWanted, reach: Optional[Callable[[str, int], str]] = None) -> None:
        """Read it. reach: as ``reached``. Raises ParseError if want.manager is not an address."""
        self.answered = None if not want.manager else (reach or reached)(*address(want.manager))
        self.problems: List[Problem] = []
        self.libraries: List[str] = []
        self.plugins: List[File] = []
        for folder in net_plugins.folders(host, want.directories or _PLACES, self.problems):
            for name in attempt(partial(host.listdir_system, folder), folder, self.problems) or ():
                path = "%s/%s" % (folder, name)
                if name.startswith(COLL) and os.path.isfile(host.system(path)):
                    self.libraries.append(path)
                elif _PLUGIN.match(name) and os.path.isfile(host.system(path)):
                    plugin = attempt(partial(_plugin, host, path), path, self.problems)
                    self.plugins.extend([plugin] if plugin else [])
        self.variables = _variables(host, self.problems)


def _plugin(host: Host, path: str) -> File:
    """A network plugin; without a version where it exports no CollNet. Raises ReadError."""
    full = host.system(path)
    try:
        versions = [name.decode("ascii") for name in _SYMBOL.findall(nccl_library.section(full, ".dynstr"))]
    except ReadError as error:
        raise ReadError(path, error.problem.message) from error
    return File(path, max(versions, default="", key=lambda name: int(name.rpartition("v")[2])))


def _variables(host: Host, problems: List[Problem]) -> Dict[str, List[Setting]]:
    """Return variables. The environment of all jobs precedes nccl.conf; a user's setting affects only that user."""
    found: Dict[str, List[Setting]] = {}
    for one in environment.read(host).settings:
        if one.name == one.variable:
            found.setdefault(one.name, []).append(one)
    text = attempt(partial(host.read_system, CONF), CONF, problems)
    for pair in grammar.assignments(text or ""):
        before = found.setdefault(pair.name, [])
        if not any(map(reaches_all, before)):
            before.append(Setting(pair.name, pair.value, CONF, pair.line, environment.EVERYBODY))
    return found


def is_certain(one: Setting) -> bool:
    """Return whether it does not depend on running the file."""
    return one.value is not None and not one.conditional


def reaches_all(one: Setting) -> bool:
    """Return whether it is certain that jobs of all users get it, whatever starts them."""
    return is_certain(one) and one.reach in (environment.EVERYBODY, environment.LOGINS)


def address(text: str) -> Tuple[str, int]:
    """``HOST`` or ``HOST:PORT``. Raises ParseError."""
    match = re.match(r"^(?:\[([0-9a-fA-F:.]{2,45})\]|([A-Za-z0-9][\w.-]{0,252}))(?::(\d{1,5}))?$", text.strip())
    port = int(match.group(3) or PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ParseError("sharp_manager is %r, expected HOST, HOST:PORT or [ADDRESS]:PORT" % text[:80])
    return match.group(1) or match.group(2), port


def reached(host: str, port: int) -> str:
    """Return why a port accepts no connection, "" if it does. It is closed immediately, and nothing is sent."""
    try:
        socket.create_connection((host, port), ANSWER).close()
    except socket.gaierror as error:
        return "the name is not known here (%s)" % error.strerror
    except OSError as error:
        timed = isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT
        return "no response within %g s" % ANSWER if timed else str(error.strerror or error)
    return ""
