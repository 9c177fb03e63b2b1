# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Launch one job over several nodes: the launcher's arguments and environment, and the meaning of its errors.

Every rank is started by a rank guard (rank_program.py), whose output rank_guard.py parses; here it is judged.
Sources: mpirun(1) of Open MPI 4.1 and 5.0; srun(1) of Slurm 22.05 to 24.11; measured in tests/cluster.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Collection, Counter, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, ReadError
from ..core.plan import Plan
from ..nccl_perf.output import last_words
from ..nccl_perf.record import short_names
from ..nccl_perf.transport import Moved
from . import rank_guard
from .rank_guard import RankView
from .rank_program import cpus

KINDS = ("mpirun", "srun")
MOST_HOSTS = 4096
# Seconds that the launcher gets beyond the guards' limit before it is ended, too.
GRACE = 3.0
# Seconds after which a job is given up that does not start, because nodes are busy or do not respond.
PATIENCE = 60
_AGAIN = "then run the benchmark again"
_KEYS = ("kind", "hosts", "per_node", "options", "addresses", "python")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,253}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What switches off that ssh checks the hosts' keys.
_UNSAFE = re.compile(r"stricthostkeychecking(no|off|accept-new)|userknownhostsfile/dev/null")

# Kind -> the form of its version, and what to do where it is another.
_VERSIONS = {
    "mpirun": (
        r"mpirun \(Open MPI\) ([0-9][0-9A-Za-z.]{0,31})",
        "only Open MPI's mpirun, 4 or later, is known here: install it and build nccl-tests with it, or set"
        " nccl_benchmark_launcher to srun",
    ),
    "srun": (
        r"slurm\S* ([0-9][0-9A-Za-z.-]{0,31})",
        "Slurm has to know this node: check that scontrol ping works there (slurm.conf or DNS record), or set"
        " nccl_benchmark_launcher to mpirun",
    ),
}
# Messages of launchers that start nothing, and the fix. The first row with a match counts.
_REFUSALS = r"""
attempt to run as root => let the benchmark's own user run it, or allow root: --allow-run-as-root
host key is known for|has changed and you have requested strict checking|Host key verification failed =>
    put the host's key (ssh-keyscan, compared with the host's own) into known_hosts of the node that starts jobs
Permission denied \( => give the user that starts the job access to the other nodes by ssh with a key
Could not resolve hostname => give the hosts addresses that this node resolves: nccl_benchmark_address
Connection refused|No route to host|Connection timed out =>
    check that this node reaches the others by ssh, at their addresses (nccl_benchmark_address)
orted: |prted:  => install the same Open MPI at the same place on all nodes, or set --prefix DIRECTORY
not enough slots => leave hosts and counts to the benchmark: no hostfile in openmpi-mca-params.conf
could not access\nor execute|execve\(\):  => install the program, and python3, at the same path on all nodes
specified plugin name for mpi|can not load PMIx library|not built with SLURM's PMI =>
    use an MPI with PMIx; install it (libpmix.so; Debian: libpmix-dev) and Slurm's plugin on every node, and restart
    slurmd: srun --mpi=list has to show pmix
Immediate execution impossible => the nodes were not free for a minute: see squeue and sinfo -R
DOWN, DRAINED => Slurm starts nothing on such nodes: see sinfo -R, resume them, or use mpirun
node configuration is not available => check that one partition has the nodes, and allows so many tasks
nvalid node name => the hosts' names are not Slurm's: nccl_benchmark_address has to be its NodeName
nvalid (?:partition|account|generic resource)|un(?:known|recognized) option =>
    correct that in nccl_benchmark_launcher_options
Unable to contact slurm controller => check that slurmctld responds: scontrol ping
Unable to allocate resources => see squeue, sinfo -R and the limits of the account
"""

JOB = Check(
    "nccl_perf.job",
    severity="critical",
    why="processes that run alone, or in two jobs, succeed and print figures above any bar of a network",
    fix="read stderr in the run's directory, run hostname with the same launcher command, " + _AGAIN,
)
"Were all processes of a run between nodes one job, each rank once, on the requested hosts"

LEFT = Check(
    "nccl_perf.left",
    severity="critical",
    why="a process that is left over holds its GPU, and disturbs every later run and job",
    fix="look for the program on these nodes (pgrep -fa _perf), end it, " + _AGAIN,
)
"Has every process of a run between nodes ended, on every host"

BINDING = Check(
    "nccl_perf.binding",
    why="a rank that shares its GPU, or runs on the other socket, is slow, and no link is the cause",
    fix="check that each rank can use all GPUs of its node and the CPUs next to them, " + _AGAIN,
)
"Has every rank its own GPU, and does it run on the CPUs next to it"

VARIABLES = Check(
    "nccl_perf.variables",
    why="a variable that only some nodes have, or that was not requested, changes what is measured",
    fix="take it out of /etc/environment, the shell's profiles and Slurm's prologs on these nodes, " + _AGAIN,
)
"Have all ranks the same variables of NCCL, and only the requested ones"


@dataclass(frozen=True)
class Launch:
    """A wanted job: ``per_node`` ranks on each of the hosts.

    kind: one of KINDS.   hosts: as they call themselves.   options: the site's own, for the launcher.
    addresses: by which the launcher reaches the hosts, one each: for ssh, or Slurm's names.   python: on the hosts.
    inside: id of the Slurm job in whose allocation srun starts it, as a step beside others; "" for a separate job.
    """

    kind: str
    hosts: Tuple[str, ...]
    per_node: int
    options: Tuple[str, ...] = ()
    addresses: Tuple[str, ...] = ()
    python: str = "python3"
    inside: str = ""

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.per_node


@dataclass(frozen=True)
class Launcher:
    """The launcher of this node. as_root: it would be run by root."""

    kind: str
    path: str
    version: str
    as_root: bool = False


def wanted(given: Mapping[str, Any]) -> Launch:
    """Return the job of a module's option. Raises ParseError that names the key."""
    unknown = sorted(str(key) for key in set(given) - set(_KEYS))
    kind, per_node, options = given.get("kind"), given.get("per_node"), given.get("options") or []
    python = given.get("python") or "python3"
    hosts = _names(given, "hosts")
    addresses = _names(given, "addresses") or hosts
    count = per_node if type(per_node) is int and 1 <= per_node <= 1024 else 0
    listed = isinstance(options, (list, tuple)) and all(isinstance(word, str) and word for word in options)
    interpreter = isinstance(python, str) and re.fullmatch(r"/?[A-Za-z0-9_][A-Za-z0-9_./+-]*", python)
    for wrong, message in (
        (unknown, ": there is no key %s; there are %s" % (", ".join(unknown), ", ".join(_KEYS))),
        (kind not in KINDS, ".kind: %r is not one of %s" % (kind, ", ".join(KINDS))),
        (not hosts, ".hosts: is empty"),
        (len(addresses) != len(hosts), ".addresses: %d addresses for %d hosts" % (len(addresses), len(hosts))),
        (not count, ".per_node: %r is not a number from 1 to 1024" % (per_node,)),
        (not listed, ".options: %.80r is not a list of words" % (options,)),
        (not interpreter, ".python: %.80r is not the name or path of an interpreter" % (python,)),
    ):
        if wrong:
            raise ParseError("launch" + message)
    _check_options(options)
    return Launch(str(kind), hosts, count, tuple(options), addresses, python)


def _names(given: Mapping[str, object], key: str) -> Tuple[str, ...]:
    names = given.get(key) or []
    if not isinstance(names, (list, tuple)) or len(names) > MOST_HOSTS:
        raise ParseError("launch.%s: is not a list of at most %d names" % (key, MOST_HOSTS))
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ParseError("launch.%s: %.80r is not a host name or IPv4 address" % (key, name))
    twice = sorted({name for name in names if list(names).count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ParseError("launch.%s: %s is there twice" % (key, twice[0]))
    return tuple(names)


def _check_options(options: Sequence[str]) -> None:
    """Raises ParseError for what is not an option, or switches a safeguard off."""
    if options and not options[0].startswith("-"):
        raise ParseError("launch.options: %r is not an option; the launcher would run it" % options[0])
    for word in options:
        if word in ("--", "-", ":") or not word.isprintable():
            raise ParseError("launch.options: %r: must not be there" % word)
        if _UNSAFE.search(word.lower().replace(" ", "").replace("=", "")):
            raise ParseError("launch.options: %r: host keys are checked: put them into known_hosts" % word)


def read(host: Host, kind: str, library: str = "") -> Launcher:
    """The launcher of this node. Raises ReadError with the way out.

    library: the file of libmpi that the program is built with. The mpirun of the same installation comes first:
    with one of another the ranks may not find each other.
    """
    name = _mpirun_of(host, library) if kind == "mpirun" and library else kind
    install = "install it, or set nccl_benchmark_launcher to %s" % " or ".join(each for each in KINDS if each != kind)
    try:
        said = host.run([name, "--version"])
        path = host.tool(name)
    except ReadError as error:
        raise ReadError(error.problem.source, "%s; %s" % (error.problem.message, install)) from error
    first = ((said.stdout.strip() or said.stderr.strip()).splitlines() or [""])[0]
    form, meant = _VERSIONS[kind]
    match = re.match(form, first)
    if said.rc != 0 or match is None:
        raise ReadError("%s --version" % name, "exited with %d: %.200r; %s" % (said.rc, said.last_words, meant))
    if kind == "mpirun" and int(match.group(1).partition(".")[0]) < 4:
        raise ReadError("%s --version" % name, "is Open MPI %s; 4 or later is needed" % match.group(1))
    return Launcher(kind, path, match.group(1), os.geteuid() == 0)


def _mpirun_of(host: Host, library: str) -> str:
    """Return PREFIX/bin/mpirun for PREFIX/lib[/MACHINE]/libmpi.so.40; ``mpirun`` if it is absent."""
    prefix = os.path.dirname(os.path.dirname(library))
    paths = [os.path.join(folder, "bin/mpirun") for folder in (prefix, os.path.dirname(prefix))]
    return next((path for path in paths if os.path.isfile(host.system(path))), "mpirun")


def words(launch: Launch, launcher: Launcher, names: Sequence[str], limit: float, root: str = "/") -> List[str]:
    """The words before the program: launcher, options, and the guard of each rank.

    names: variables of the launcher's own environment that the ranks get, too; no value is ever in a command line.
    limit: seconds after which each guard ends its rank.   root: directory that stands for / of the hosts' hardware.
    Raises ParseError.
    """
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise ParseError("environment: %.80r is not a name of a variable" % name)
    found = _mpirun(launch, launcher, names) if launch.kind == "mpirun" else _srun(launch, launcher, names, limit)
    guard = [launch.python, "-I", "-S", "-c", rank_guard.program(), "--limit", "%g" % limit, "--root", root, "--"]
    return [*found, *guard]


def _mpirun(launch: Launch, launcher: Launcher, names: Sequence[str]) -> List[str]:
    found = [launcher.path]
    if launcher.as_root:
        # The program belongs to root, and Ansible is root on all of these nodes.
        found.append("--allow-run-as-root")
    slots = ",".join("%s:%d" % (address, launch.per_node) for address in launch.addresses)
    found += ["-H", slots, "-np", str(launch.ranks), "--map-by", "ppr:%d:node" % launch.per_node, "--bind-to", "none"]
    found += ["--stdin", "none"]
    # Blocks of 4 KB are what it passes on: only by their tags the lines of a rank are put together again.
    found += ["--tag-output"] if launcher.version.startswith("4.") else ["--output", "tag"]
    if any("." in address and not re.fullmatch(r"[0-9.]+", address) for address in launch.addresses):
        # Else ssh gets a name up to its first dot, which may not resolve.
        keep = ("--mca", "orte") if launcher.version.startswith("4.") else ("--prtemca", "prte")
        found += [keep[0], keep[1] + "_keep_fqdn_hostnames", "1"]
    for name in sorted(set(names)):
        found += ["-x", name]
    return [*found, *launch.options]


def _srun(launch: Launch, launcher: Launcher, names: Sequence[str], limit: float) -> List[str]:
    # Slurm counts in minutes. Should srun be killed, this ends the allocation.
    minutes = int(limit / 60) + 2
    found = [launcher.path, "--nodelist=" + ",".join(launch.addresses), "--nodes=%d" % len(launch.hosts)]
    found += ["--ntasks=%d" % launch.ranks, "--ntasks-per-node=%d" % launch.per_node, "--distribution=block"]
    found += ["--time=%d" % minutes, "--wait=30", "--kill-on-bad-exit=1", "--input=none"]
    # By name: srun takes the values from its own environment. Without any it would hand on all of that.
    found.append("--export=" + ",".join(sorted({"PATH", *names})))
    defaults: Tuple[str, ...] = ("--job-name=busbar", "--exclusive", "--immediate=%d" % PATIENCE)
    if launch.inside:
        # Other steps of the job keep their share, and there is one task per GPU, however few the job requested.
        defaults = ("--jobid=" + launch.inside, "--overlap", "--overcommit")
    defaults += ("--mem=0", "--cpu-bind=none", "--mpi=pmix")
    given = [word.partition("=")[0] for word in launch.options]
    return [*found, *(word for word in defaults if word.partition("=")[0] not in given), *launch.options]


def environment(launcher: Launcher) -> Dict[str, str]:
    """Return what the launcher needs in its environment, beside PATH, HOME and what its ranks get.

    mpirun shows these settings, and nothing else of its environment, in the command lines of its ssh.
    """
    if launcher.kind == "srun":
        return {}
    ssh = "-x -a -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=20"
    settings = {"agent": "ssh", "args": ssh, "no_tree_spawn": "1", "num_concurrent": "128"}
    # Open MPI 4 calls its part for ssh rsh, Open MPI 5 has it from PRRTE. Each ignores the other's.
    found = {"OMPI_MCA_plm_rsh_" + name: value for name, value in settings.items()}
    found.update({"PRTE_MCA_plm_ssh_" + name: value for name, value in settings.items()})
    return found


def refusal(launcher: Launcher, rc: Optional[int], said: str) -> str:
    """Return why nothing was started, and the fix. said: the launcher's output."""
    last = (last_words(said) or ("nothing",))[0]
    for row in _REFUSALS.replace("\n    ", " ").strip().split("\n"):
        phrase, _arrow, way_out = row.partition(" => ")
        match = re.search(phrase, said)
        if match:
            line = said[said.rfind("\n", 0, match.start()) + 1 :].splitlines()[0].strip()
            return "%s started nothing: %.200s; %s" % (launcher.kind, line, way_out)
    ended = "ended with %s" % rc if rc is not None else "was ended"
    way_out = "run the command by hand with hostname in place of the program"
    return "%s %s and no rank has started; it printed: %.200s; %s" % (launcher.kind, ended, last, way_out)


# -- judging the ranks ----------------------------------------------------------------------------------------------


class _Verdict(NamedTuple):
    """wrong, unknown: what the ranks show, a text each.   good: the text where both are empty.

    caused: by what is wrong with the job.
    """

    good: str
    wrong: Sequence[str] = ()
    unknown: Sequence[str] = ()
    fix: Optional[str] = None
    caused: bool = False


def judge(views: Sequence[RankView], launch: Launch, subject: str, asked: Optional[Collection[str]] = None) -> Plan:
    """Judge whether the ranks were the wanted single job, well placed, and whether every process has ended.

    asked: names of NCCL's variables that the ranks should have; None if not known.
    """
    names = short_names(launch.hosts)
    job = _job(views, launch, names) if views else _Verdict("", unknown=["no rank has started"])
    missing = _Verdict("", unknown=job.wrong or job.unknown, caused=True)
    end, binding, variables = _end(views), _binding(views, launch), _variables(views, asked)
    if len(views) < launch.ranks and not end.wrong and not end.unknown:
        end = missing
    one_job = "one job of %d ranks, %d on each of %s" % (launch.ranks, launch.per_node, _few(names))
    same = "the same variables of NCCL everywhere, and only the requested ones"
    findings: List[Finding] = []
    for check, want, one in (
        (JOB, one_job, job),
        (LEFT, "no process on any host", end),
        (BINDING, "a separate GPU for each rank, and the CPUs next to it", binding if views else missing),
        (VARIABLES, same, variables if views else missing),
    ):
        state = "drift" if one.wrong else "unknown" if one.unknown else "ok"
        have, because = _few(one.wrong or one.unknown) or one.good, findings[0] if one.caused else None
        findings.append(check.judge(subject, state, want, have, launch.kind, one.fix, because))
    return Plan(tuple(findings))


def moved(views: Sequence[RankView]) -> Dict[str, Dict[str, Moved]]:
    """Host -> RDMA device -> what any process has moved, without counters not read twice, or that ran backwards."""
    found: Dict[str, Dict[str, Moved]] = {}
    for view in (view for view in views if len(view.rails) == 2):
        before, after = view.rails
        pairs = [(name, before[name], after[name]) for name in before if name in after]
        grown = [(name, a, b) for name, a, b in pairs if b[0] >= a[0] and b[1] >= a[1]]
        found[view.host] = {name: Moved(b[0] - a[0], b[1] - a[1]) for name, a, b in grown}
    return found


def _few(texts: Collection[str]) -> str:
    """At most three of them."""
    some = list(texts)
    return "; ".join(some[:3]) + (" and %d more" % (len(some) - 3) if len(some) > 3 else "")


def _name(view: RankView) -> str:
    return "rank %s on %s" % ("?" if view.begin.rank is None else view.begin.rank, view.host)


def _job(views: Sequence[RankView], launch: Launch, names: Sequence[str]) -> _Verdict:
    begun = [view.begin for view in views]
    wrong = []
    fix = None
    apart = [_name(view) for view in views if not view.begin.pmix]
    if apart:
        wrong.append("%d ranks cannot find each other, each is a separate job (%s)" % (len(apart), apart[0]))
        fix = "use the MPI that the program is built with; srun needs --mpi=pmix to work (srun --mpi=list), " + _AGAIN
    jobs = {one.job: one.host for one in reversed(begun)}
    if len(jobs) > 1:
        wrong.append("%d jobs, such as %s" % (len(jobs), _few(["%r on %s" % each for each in sorted(jobs.items())])))
    worlds = sorted({-1 if one.world is None else one.world for one in begun})
    if worlds != [launch.ranks]:
        wrong.append("the launcher reports %s ranks" % " and ".join("?" if n < 0 else str(n) for n in worlds))
    ranks = Counter(one.rank for one in begun)
    twice = sorted(str(rank) for rank, times in ranks.items() if times > 1)
    if twice:
        wrong.append("more than one rank %s" % ", ".join(twice[:5]))
    places = Counter(one.host for one in begun)
    others = sorted(set(places) - set(names))
    if others:
        wrong.append("ranks on %s, which was not requested" % _few(others))
    crowded = ["%d on %s" % (places[name], name) for name in names if places[name] > launch.per_node]
    if crowded and not twice:
        wrong.append("ranks on the wrong hosts: %s" % _few(crowded))
    absent = [name for name in names if places[name] < launch.per_node]
    each = _few(["%s has %d of %d" % (name, places[name], launch.per_node) for name in absent])
    missing = sum(rank not in ranks for rank in range(launch.ranks))
    unknown = ["%d of %d ranks have not started: %s" % (missing, launch.ranks, each)] if missing else []
    good = "one job of %d ranks, %d on each of %d hosts" % (launch.ranks, launch.per_node, len(names))
    return _Verdict(good, wrong, unknown, fix)


def _end(views: Sequence[RankView]) -> _Verdict:
    stuck = ["%d on %s" % (view.ending.left, view.host) for view in views if view.ending and view.ending.left]
    silent = [_name(view) for view in views if view.ending is None]
    wrong = ["processes that could not be killed: %s" % _few(stuck)] if stuck else []
    return _Verdict("every rank has ended", wrong, ["no end was reported by %s" % _few(silent)] if silent else [])


def _binding(views: Sequence[RankView], launch: Launch) -> _Verdict:
    wrong: List[str] = []
    unknown: List[str] = []
    fix = None
    owners: Dict[Tuple[str, str], str] = {}
    for view in views:
        one, name = view.begin, _name(view)
        if not one.gpus:
            unknown.append("%s sees no GPU in /proc/driver/nvidia/gpus" % name)
        elif one.visible < launch.per_node:
            limited = " (CUDA_VISIBLE_DEVICES=%s)" % one.visible_devices if one.visible_devices else ""
            wrong.append("%s can use %d of %d GPUs%s" % (name, one.visible, one.gpus, limited))
            fix = "see what hides them (CUDA_VISIBLE_DEVICES, a container, the cgroup of a job), " + _AGAIN
            if launch.kind == "srun":
                options = "--gpus-per-node=%d and --gpu-bind=none" % launch.per_node
                fix = "add %s to nccl_benchmark_launcher_options, %s" % (options, _AGAIN)
        elif not one.gpu:
            unknown.append("%s does not know its GPU" % name)
        elif (one.host, one.gpu) in owners:
            wrong.append("%s and %s share GPU %s" % (owners[one.host, one.gpu], name, one.gpu))
        elif not one.gpu_cpus:
            unknown.append("the kernel does not report which CPUs are next to GPU %s of %s" % (one.gpu, name))
        elif not cpus(one.cpus) <= cpus(one.gpu_cpus):
            wrong.append("%s runs on CPUs %s, next to its GPU are %s" % (name, one.cpus, one.gpu_cpus))
            fix = fix or "see what excludes the others (a cgroup, isolcpus, --cpus-per-task), " + _AGAIN
        owners.setdefault((one.host, one.gpu), name)
    return _Verdict("%d ranks with a GPU each, on its CPUs" % len(views), wrong, unknown, fix)


def _variables(views: Sequence[RankView], asked: Optional[Collection[str]]) -> _Verdict:
    silent = [_name(view) for view in views if view.variables is None]
    every = sorted({name for view in views for name in view.variables or ()})
    wrong = []
    for name in every if not silent else ():
        values: Dict[str, str] = {}
        for view in views:
            values.setdefault((view.variables or {}).get(name, "unset"), _name(view))
        if asked is not None and name not in asked:
            having = [_name(view) for view in views if name in (view.variables or {})]
            wrong.append("%s is set but was not requested: %s" % (name, _few(having)))
        elif len(values) > 1:
            wrong.append("%s is %s" % (name, _few(["%s for %s" % each for each in sorted(values.items())])))
    good = "%d variables, the same for %d ranks" % (len(every), len(views))
    return _Verdict(good, wrong, ["not known of %s" % _few(silent)] if silent else [])
