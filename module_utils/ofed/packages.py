# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packages of Debian and EL: installed and held ones, files of a vendor's repository, and commands.

A repository counts only with its key, a release is pinned if possible, and no prompt can wait for ever.
Sources: dpkg-query(1), sources.list(5), apt_preferences(5), apt-get(8), dnf.conf(5), dnf versionlock.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from ..core import os_release
from ..core.host import Host, ParseError, Problem, attempt
from ..core.plan import Command

VERSIONLOCK = "/etc/dnf/plugins/versionlock.list"
VERSIONLOCK_PLUGIN = "python3-dnf-plugin-versionlock"
# Seconds: packages may build drivers.
INSTALL_TIMEOUT = 3600.0
_DPKG = ("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}\t${Package}\t${Version}\n")
_RPM = ("rpm", "-qa", "--queryformat", "%{NAME}\t%{VERSION}-%{RELEASE}\n")
_APT_GET = ("apt-get", "-y", "-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Options::=--force-confold")
_HELD = "--allow-change-held-packages"
# name-epoch:version-release.arch. A name alone locks no version.
_LOCK = re.compile(r"(?P<name>.+)-(?:(?:[0-9]+|\*):)?(?P<version>[^-:]+-[^-]+)")
# Whatever is the default there: a repository that does not answer is an error.
_OURS = ("--repo=busbar-mofed", "--setopt=busbar-mofed.skip_if_unavailable=False")
# Of the repository: key, address and (apt only) pins.
FILES = {
    "apt": (
        "/etc/apt/keyrings/busbar-mofed.asc",
        "/etc/apt/sources.list.d/busbar-mofed.sources",
        "/etc/apt/preferences.d/busbar-mofed",
    ),
    "dnf": ("/etc/pki/rpm-gpg/RPM-GPG-KEY-busbar-mofed", "/etc/yum.repos.d/busbar-mofed.repo"),
}
_TEXTS = {
    "apt": (
        "# Written by Busbar (role mofed).\nTypes: deb\nURIs: %(url)s\nSuites: ./\nSigned-By: %(key)s\n",
        "# Written by Busbar (role mofed): before the distribution's RDMA packages, which do not fit beside it.\n"
        'Package: *\nPin: origin "%(host)s"\nPin-Priority: 600\n'
        "\nPackage: %(package)s\nPin: version %(version)s*\nPin-Priority: 1001\n",
    ),
    "dnf": (
        "# Written by Busbar (role mofed).\n[busbar-mofed]\nname=mofed\nbaseurl=%(url)s\nenabled=1\ngpgcheck=1\n"
        "gpgkey=file://%(key)s\n# Before the distribution's RDMA packages, which do not fit beside it.\npriority=50\n",
    ),
}
_ARGV = {
    "apt": {
        "refresh": (*_APT_GET, "update"),
        "install": (*_APT_GET, _HELD, "install"),
        "remove": (*_APT_GET, _HELD, "purge"),
    },
    "dnf": {
        "refresh": ("dnf", "-y", *_OURS, "makecache"),
        "install": ("dnf", "-y", "install"),
        "remove": ("dnf", "-y", "remove"),
    },
}


class System(NamedTuple):
    """kind: "apt" or "dnf".   name: as vendors write it in their paths: ubuntu24.04, debian12, rhel9."""

    kind: str
    name: str


class Packages(NamedTuple):
    """installed: name -> version.   held: names that no upgrade takes along.

    locked: names that dnf's versionlock has, whatever version is locked: no other can be installed.
    """

    installed: Mapping[str, str]
    held: Tuple[str, ...]
    locked: Tuple[str, ...] = ()


def system_of(found: Mapping[str, str]) -> System:
    """Return the system. found: values of os-release. Raises ParseError for neither Debian's nor Red Hat's family."""
    version, names = found.get("VERSION_ID", ""), {found.get("ID", ""), *found.get("ID_LIKE", "").split()}
    if found.get("ID") == "ubuntu" and version:
        return System("apt", "ubuntu%s" % version)
    if found.get("ID") == "debian" and version:
        return System("apt", "debian%s" % version.partition(".")[0])
    if names & {"rhel", "fedora"} and version:
        return System("dnf", "rhel%s" % version.partition(".")[0])
    raise ParseError("%s %s is neither Debian, Ubuntu nor a relative of RHEL" % (found.get("ID", "no ID"), version))


def parse_dpkg(text: str) -> Packages:
    """Parse the output of _DPKG. Raises ParseError."""
    installed, held = {}, []
    for line in filter(None, text.splitlines()):
        fields = line.split("\t")
        if len(fields) != 3 or not fields[1] or re.fullmatch(r"[uihrp][ncHUFWti][ R]", fields[0]) is None:
            raise ParseError("%r, expected a state such as 'ii ', a name and a version" % line[:80])
        # An unpacked or half-configured package is not installed: what needs it may not work.
        if fields[0][1] == "i":
            installed[fields[1]] = fields[2]
            held += [fields[1]] if fields[0][0] == "h" else []
    return Packages(installed, tuple(held))


def parse_rpm(text: str, versionlock: str) -> Packages:
    """Parse the output of _RPM.   versionlock: text of that file. Raises ParseError."""
    installed: Dict[str, str] = {}
    for line in filter(None, text.splitlines()):
        fields = line.split("\t")
        if len(fields) != 2 or not fields[0]:
            raise ParseError("%r, expected a name and a version" % line[:80])
        installed[fields[0]] = fields[1]
    lines = [line.strip() for line in versionlock.splitlines()]
    found = [_LOCK.fullmatch(line) for line in lines if line and not line.startswith(("#", "!"))]
    locks = [(match["name"], match["version"]) for match in found if match is not None]
    # A lock on another version than the installed one does not hold it: the next change installs that version.
    held = [name for name, version in locks if name in installed and _is_version(installed[name], version)]
    return Packages(installed, tuple(dict.fromkeys(held)), tuple(dict.fromkeys(name for name, _version in locks)))


def _is_version(version: str, pattern: str) -> bool:
    """pattern: of a lock, whose architecture (mostly a star) may follow."""
    return any(fnmatchcase(version, each) for each in (pattern, pattern.rpartition(".")[0]))


def read_system(host: Host) -> System:
    """Return the node's system. Raises ReadError and ParseError."""
    return system_of(os_release.read(host)[1])


def read(host: Host, system: System, problems: List[Problem]) -> Optional[Packages]:
    """Return the packages; None plus a Problem if the package manager failed or was not understood."""
    argv = _DPKG if system.kind == "apt" else _RPM

    def query() -> Packages:
        output = host.run(argv)
        if output.rc != 0:
            raise ParseError("exited with %d: %.120s" % (output.rc, output.last_words))
        if system.kind == "apt":
            return parse_dpkg(output.stdout)
        return parse_rpm(output.stdout, host.read_system(VERSIONLOCK) or "")

    return attempt(query, argv[0], problems)


# -- files and commands --------------------------------------------------------------------------------------------


def render(system: System, address: str, key: str, package: str, version: str) -> Dict[str, str]:
    """Return path -> text of the repository's files. address: of a flat repository.   key: armoured text.

    package, version: that may be installed. Raises ParseError for an invalid key or URL.
    """
    begin, end = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"
    if not key.strip().startswith(begin) or not key.strip().endswith(end):
        raise ParseError("the repository's key is not an armoured PGP public key (%s)" % begin)
    url = urlsplit(address)
    if url.scheme not in ("http", "https", "file") or re.search(r"[\s\[\]]", address):
        raise ParseError("%r is not an http, https or file URL" % address)
    files = FILES[system.kind]
    values = {"url": address, "host": url.hostname or "", "key": files[0], "package": package, "version": version}
    return dict(zip(files, [key.strip() + "\n", *(text % values for text in _TEXTS[system.kind])]))


def command(system: System, action: str, names: Sequence[str], why: str) -> Command:
    """Return a command of the package manager. action: refresh, install or remove."""
    return Command((*_ARGV[system.kind][action], *names), why, timeout=INSTALL_TIMEOUT)


def refresh(system: System) -> Command:
    return command(system, "refresh", (), "read what the repository offers")


def full_name(system: System, name: str, version: str) -> str:
    """Return a package as it is named to be installed: dnf has no pins, and downgrades only to a named version."""
    return "%s-%s*" % (name, version) if system.kind == "dnf" and version else name


def hold(system: System, names: Sequence[str], found: Packages) -> Tuple[Command, ...]:
    """Return commands after which no upgrade changes these packages."""
    why = "an upgrade of the system must not replace the driver"
    if system.kind == "apt":
        return (Command(("apt-mark", "hold", *names), why),)
    plugin = () if VERSIONLOCK_PLUGIN in found.installed else (command(system, "install", [VERSIONLOCK_PLUGIN], why),)
    return (*plugin, *release(system, names, found), _versionlock("add", names, why))


def release(system: System, names: Sequence[str], found: Packages) -> Tuple[Command, ...]:
    """Return commands that let other versions of these packages be installed; apt does that despite a hold."""
    locked = [name for name in names if name in found.locked]
    if system.kind == "apt" or not locked:
        return ()
    return (_versionlock("delete", locked, "dnf installs only the locked version"),)


def _versionlock(action: str, names: Sequence[str], why: str) -> Command:
    # The installed packages have the versions: repositories are not needed.
    return Command(("dnf", "-y", "--disablerepo=*", "versionlock", action, *names), why, timeout=INSTALL_TIMEOUT)


def headers(system: System, kernel: str) -> str:
    """Return the package that is needed to build modules for a kernel."""
    if system.kind == "apt":
        return "linux-headers-%s" % kernel
    # 5.14.0-503.el9.aarch64+64k is of kernel-64k; Oracle's 5.15.0-206.el9uek.x86_64 of kernel-uek.
    release, _plus, variant = kernel.partition("+")
    variant = variant or ("uek" if "uek." in release else "")
    return "-".join(filter(None, ("kernel", variant, "devel", release)))
