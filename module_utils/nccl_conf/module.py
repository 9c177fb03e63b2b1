# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write /etc/nccl.conf: options and work of the module ``nccl_conf``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..change import apply, module
from ..core.finding import Finding
from ..core.host import Host, ParseError, ReadError, attempt
from ..core.plan import Plan, merge
from ..driver.nvidia_options import INITIATED
from ..machine import profile, rails, topology, virtualization
from . import derive, gdrcopy, jobs_network, net_plugins, plan, proof, topo_file
from . import library as nccl_library
from .checks import LIBRARY
from .lint_values import Use
from .version import Version, format_version, parse_version

SPEC: module.Spec = {
    **module.PROFILE,
    "path": {"type": "path", "default": "/etc/nccl.conf"},
    "extra": {"type": "dict"},
    "accepted": {"type": "dict", "default": {}},
    "containers": {"type": "list", "elements": "str", "choices": ["enroot", "docker", "kubernetes"], "default": []},
    "libraries": {"type": "list", "elements": "path", "default": []},
    "nccl_version": {"type": "str", "default": ""},
    "prove": {"type": "bool", "default": True},
    "gpudirect": {"type": "str", "choices": ["auto", "peermem", "dmabuf", "off"], "default": "auto"},
    "dscp": {"type": "int"},
    "address_family": {"type": "str", "choices": ["", "ipv4", "ipv6"], "default": ""},
    "management_interface": {"type": "str", "default": ""},
    "net_plugin": {"type": "str"},
    "gpu_initiated": {"type": "list", "elements": "str", "choices": list(INITIATED), "default": []},
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, object], check_mode: bool) -> Dict[str, object]:
    task = Task(host, given)
    result = apply.converge(host, check_mode, task.look, mends=lambda finding: finding.subject in task.files)
    versions = sorted({format_version(library.version) for library in task.libraries})
    facts = {"nccl": ", ".join(versions)}
    return dict(result, variables=task.derivation.expected, facts=facts)


class Task:
    """Options of one call, and the state of the host that does not change with the files.

    files: paths of all changed files.
    """

    def __init__(self, host: Host, given: Mapping[str, Any]) -> None:
        """Raises ParseError, ReadError."""
        self.host = host
        self.given = given
        check_options(given)
        wanted = profile.parse(given["profile"], given["profile_name"])
        self.profile = profile.for_fabric(wanted, given["fabric"] or None)
        self.version = _version(given["nccl_version"])
        self.libraries, self.unreadable = self.scan()
        cpuinfo = attempt(partial(host.read, virtualization.CPUINFO), virtualization.CPUINFO, [])
        self.releases = plan.judge_releases(self.libraries, self.version, cpuinfo)
        # Rails, paths and routes are all in sysfs and procfs.
        self.machine = topology.read(host, ask_nvidia_smi=False)
        hcas = [nic.rdma.name for nic in self.machine.nics if nic.rdma is not None]
        files = net_plugins.find(host, [])
        self.plugin_files = files if self.libraries else None
        self.use = Use(self.libraries, self.version, hcas, plugin_files=self.plugin_files)
        self.files: Set[str] = set()
        text = attempt(lambda: host.read_system(given["path"]), given["path"], [])
        # What stays of the present file if it is not the suite's.
        image = derive.read_image(text, self.machine.virtualization.cloud, self.use)
        extra = None if given["extra"] is None else {name: str(value) for name, value in given["extra"].items()}
        names = ("gpudirect", "dscp", "address_family", "management_interface", "net_plugin")
        want = derive.Want(**{name: given[name] for name in names}, extra=extra, image=image)
        self.want, self.unset = derive.with_unset(want, text)
        versions = Use(self.libraries, None if self.libraries else self.version).versions
        self.derivation = derive.derive(self.machine, self.profile, self.want, versions)
        self.use = self.use._replace(plugin=net_plugins.of_settings(self.derivation.expected))
        declared = given["net_plugin"] or ""
        self.releases += jobs_network.judge_plugin(host, declared, files, bool(self.libraries))
        proves = given["prove"] and not self.derivation.blockers
        self.proofs = [(one.path, self.prove(one)) for one in self.libraries] if proves else []

    def scan(self) -> Tuple[List[nccl_library.Library], List[Finding]]:
        """Scan the jobs' libraries, or those in the standard places if neither libraries nor a version are given.

        Return findings on those that cannot be read, too.
        """
        paths: Sequence[str] = self.given["libraries"]
        if not paths and self.version is None:
            paths = nccl_library.find(self.host)
        libraries, findings = [], []
        for path in paths:
            try:
                libraries.append(nccl_library.scan(self.host.system(path))._replace(path=path))
            except ReadError as error:
                findings.append(LIBRARY.judge(path, "unknown", "a libnccl.so.2", error.problem.message))
        return libraries, findings

    def prove(self, library: nccl_library.Library) -> proof.Proof:
        text = derive.render(self.derivation.variables)
        return proof.prove(self.host.system(library.path), text, self.derivation.expected, base=self.host.system_root)

    def look(self) -> Plan:
        path = self.given["path"]
        have = plan.read(self.host, path)
        have = plan.with_topo_file(have, self.host, self.machine, self.profile, self.derivation)
        owner = derive.judge_owner(self.host, path, self.machine.virtualization.cloud)
        gdr = gdrcopy.judge(self.host, self.derivation.expected, have.environment)
        have = replace(have, others=(*have.others, *owner, *([gdr] if gdr else []), *self.jobs_network(have)))
        plans = [Plan((*self.unreadable, *self.releases), notes=tuple(self.notes()))]
        plans.append(plan.plan(have, self.derivation, path, self.use, self.proofs, self.given["accepted"]))
        topo = self.derivation.expected.get(topo_file.NAME, "")
        plans += [plan.plan_container(self.host, runtime, path, topo) for runtime in self.given["containers"]]
        found = merge(*plans).with_backup(self.given["backup"]).limit(self.given["max_disruption"])
        self.files.update(change.path for change in found.changes)
        return found

    def jobs_network(self, have: plan.Have) -> List[Finding]:
        """Judge what GPU-initiated traffic of jobs needs."""
        ethernet = any("Ethernet" in rail.link_layers for rail in self.profile.rails)
        return jobs_network.judge_initiated(
            self.given["gpu_initiated"],
            self.libraries,
            self.version,
            self.derivation.expected,
            have.environment,
            rails.match(self.machine, self.profile),
            self.want.dscp if ethernet else None,
        )

    def notes(self) -> List[str]:
        """Return notes on what nccl.conf retains, and on what is not proven."""
        notes = [*self.unset, *derive.image_notes(self.want.image, self.want.extra or {}, self.derivation.expected)]
        unproven = (
            "nccl.conf was linted against the table of NCCL %s and not proven: list the libraries that jobs use in"
            " busbar_nccl_libraries" % self.given["nccl_version"]
        )
        proven = self.version is None or self.libraries or self.unreadable or self.derivation.blockers
        return notes if proven else [unproven, *notes]


def check_options(given: Mapping[str, Any]) -> None:
    """Raise ParseError. Paths get into files for containers: a line break in one would become another line there."""
    for name, paths in (("path", [given["path"]]), ("libraries", given["libraries"])):
        for path in paths:
            if not path.startswith("/") or not path.isprintable():
                raise ParseError("%s: %r is not an absolute path" % (name, path))
    if given["dscp"] is not None and not -1 <= given["dscp"] <= 63:
        raise ParseError("dscp is %d, expected 0 to 63, or -1 for none" % given["dscp"])
    declared = given["net_plugin"] or ""
    if not declared.isprintable() or ("/" in declared and not declared.startswith("/")):
        raise ParseError("net_plugin is %r, expected a name, or the absolute path of a library" % declared)
    for name, errors in (
        ("extra", derive.extra_errors(given["extra"] or {})),
        ("accepted", derive.accepted_errors(given["accepted"])),
    ):
        if errors:
            raise ParseError("%s: %s" % (name, "; ".join(errors)))


def _version(text: str) -> Optional[Version]:
    try:
        return parse_version(text) if text else None
    except ParseError as error:
        raise ParseError("nccl_version: %s" % error) from error
