# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what a benchmark's result depends on, and compare it with the values at the time of the measurement.

The record of a run stores it by name, so that findings name the changed part. All of it comes from files: no tool
is run and no GPU is woken. The GPUs' names come from their PCI ids, since the driver knows model and UUID of a GPU only
after its first use. The bar is not included: a stored figure is compared with the present bar, and a result below it is
due anyway. Sizes, collective and iterations are the run's command, which is compared as a whole (nccl_perf.fresh).
"""

from __future__ import annotations

import hashlib
import os
import pwd
import time
from functools import lru_cache, partial
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..core import redaction
from ..core.host import Host, ParseError, ReadError, read_once
from ..machine import gpu
from ..machine.pci import parse_address
from ..nccl_conf import grammar, library

# Part -> item -> value. The item of a part that is one value is "".
Depends = Mapping[str, Mapping[str, str]]

DRIVER = "NVIDIA driver"
KERNEL = "kernel"
ARGUMENTS = "kernel argument"
NCCL = "NCCL"
PROGRAM = "nccl-tests"
CONF = "nccl.conf"
FIRMWARE = "firmware of NIC"
GPUS = "GPU"
ENVIRONMENT = "nccl_benchmark_environment"

CONF_PATH = "/etc/nccl.conf"
_CMDLINE = "/proc/cmdline"
_HCAS = "/sys/class/infiniband"
_RELEASE = "/proc/sys/kernel/osrelease"
_LIBRARY = "libnccl.so.2"
# Arguments that name the booted kernel, which the release covers.
_OF_BOOT = ("BOOT_IMAGE", "initrd")
_UNKNOWN = "unknown: "
_ABSENT = "absent"
# A part's first change is reported, and of the rest the number.
_SHOWN = 120
_SALT = 16


class Change(NamedTuple):
    """part: one of the names above.   text: ``NVIDIA driver 550.54.15, now 570.86.10``."""

    part: str
    text: str


@read_once
def read(host: Host) -> Depends:
    """All that does not depend on which program is run. What cannot be read is in it as ``unknown: REASON``."""
    return {
        DRIVER: {"": _value(partial(_driver, host))},
        KERNEL: {"": _value(partial(host.require, _RELEASE))},
        ARGUMENTS: _part(lambda: _arguments(host.require(_CMDLINE))),
        FIRMWARE: _part(lambda: _firmware(host)),
        GPUS: _part(lambda: _gpus(host)),
    }


def run_inputs(
    host: Host, binary: str, built: Optional[str], environment: Mapping[str, str], given: Mapping[str, str], salt: str
) -> Depends:
    """Return the parts that depend on the program and on its variables.

    binary: the program.   built: its entry in the marker of its build, None without a marker.
    environment: all that it gets.   given: variables by the site; their values may be secrets, and are stored as
    digests.   salt: of the record, see ``new_salt``.
    """
    folders = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    return {
        PROGRAM: {"": built or _value(partial(_file, binary))},
        NCCL: {"": _value(lambda: _library(_find(host, folders)))},
        CONF: _part(lambda: _conf(host, environment)),
        ENVIRONMENT: {name: _sealed(name, value, salt) for name, value in sorted(given.items())},
    }


def new_salt() -> str:
    """Return a salt for a record's digests: else equal values of nodes would show, and short ones could be guessed."""
    return os.urandom(_SALT).hex()


def changes(before: Depends, now: Depends) -> List[Change]:
    """Return what has changed.

    Unknown on one side is a change. Unknown on both sides for the same reason is not: it would stay unknown, and every
    run would measure the node. ``unproven`` reports it instead, and the result's age limits it.
    """
    found = []
    for part in list(dict.fromkeys([*now, *before])):
        old, new = before.get(part, {}), now.get(part, {})
        if "" in old or "" in new:
            # One value now, a table of them then, as where it has become unknown.
            old = old if "" in old else {"": _whole(old)}
            new = new if "" in new else {"": _whole(new)}
        items = [item for item in sorted({*old, *new}) if old.get(item) != new.get(item)]
        if items:
            text = _change(part, items[0], old.get(items[0]), new.get(items[0]))
            found.append(Change(part, text + (" (and %d more)" % (len(items) - 1) if items[1:] else "")))
    return found


def unproven(before: Depends, now: Depends) -> List[str]:
    """Parts that were unknown when the result was measured, and are so now for the same reason: a sentence each."""
    return [
        "whether %s changed since the benchmark's last result is not known: %s"
        % (" ".join(filter(None, (part, item))), value[len(_UNKNOWN) :])
        for part in now
        for item, value in now[part].items()
        if value.startswith(_UNKNOWN) and before.get(part, {}).get(item) == value
    ]


def _change(part: str, item: str, old: Optional[str], new: Optional[str]) -> str:
    label = " ".join(filter(None, (part, item)))
    if part == ENVIRONMENT:
        return "%s %s" % (label, "removed" if new is None else "added" if old is None else "changed")
    return "%s %s, now %s" % (label, _short(old), _short(new))


def _short(value: Optional[str]) -> str:
    if not value:
        return _ABSENT if value is None else "empty"
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "..."


def _whole(items: Mapping[str, str]) -> str:
    return "known" if items else "none"


# -- parts -----------------------------------------------------------------------------------------------------------


def _part(look: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    try:
        return look()
    except (ReadError, ParseError) as error:
        return {"": unknown(error)}


def unknown(error: Exception) -> str:
    """The value of what could not be read."""
    return _UNKNOWN + str(error)


def _value(look: Callable[[], str]) -> str:
    return _part(lambda: {"": look()})[""]


def _driver(host: Host) -> str:
    try:
        driver = gpu.parse_driver_version(host.require(gpu.VERSION))
    except ParseError as error:
        raise ReadError(gpu.VERSION, str(error)) from error
    return driver.version + (" (open kernel module)" if driver.open_kernel_module else "")


def _arguments(line: str) -> Dict[str, str]:
    """Name -> value of the kernel command line; an argument that is there more than once has all its values."""
    found: Dict[str, List[str]] = {}
    for word in line.split():
        if word == "--":
            break  # what follows is init's
        name, equals, value = word.partition("=")
        said = redaction.REDACTED if redaction.is_secret_name(name) else value if equals else "set"
        if name not in _OF_BOOT:
            found.setdefault(name, []).append(said)
    return {name: " ".join(values) for name, values in found.items()}


def _firmware(host: Host) -> Dict[str, str]:
    """PCI address -> firmware. Virtual functions have their owner's, and come and go with containers and guests."""
    found = {}
    for name in host.listdir(_HCAS):
        path = "%s/%s" % (_HCAS, name)
        device = host.realpath(path + "/device")
        # A software device names its netdev as its parent.
        if device is None or host.realpath(path + "/parent") or host.realpath(path + "/device/physfn"):
            continue
        try:
            address = parse_address(device.rsplit("/", 1)[-1])
        except ParseError:
            continue  # a subfunction, which is a part of a NIC
        found[address] = _value(partial(host.require, path + "/fw_ver"))
    return found


def _gpus(host: Host) -> Dict[str, str]:
    """PCI address -> PCI ids of each GPU that the driver has."""
    return {name: _value(partial(_ids, host, "/sys/bus/pci/devices/%s" % name)) for name in host.listdir(gpu.GPUS)}


def _ids(host: Host, path: str) -> str:
    return ":".join(host.require("%s/%s" % (path, name)) for name in ("vendor", "device"))


def _conf(host: Host, environment: Mapping[str, str]) -> Dict[str, str]:
    """Name -> value of what NCCL reads from files: the first definition counts. Comments do not."""
    try:
        # As NCCL reads it; it does not depend on how a user became root.
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = ""
    first = environment.get("NCCL_CONF_FILE") or (home and "%s/%s" % (home, grammar.USER_FILE))
    texts = [host.read_system(path) for path in (first, CONF_PATH) if path]
    return grammar.settings([line for text in texts if text is not None for line in grammar.parse(text)])


def _find(host: Host, folders: Sequence[str]) -> str:
    """The library that the program loads: of the first folder that has one, else that of the standard places."""
    paths = ["%s/%s" % (folder, _LIBRARY) for folder in folders]
    found = next((path for path in paths if os.path.isfile(path)), None)
    if found is None:
        found = next((host.system(path) for path in library.find(host)), None)
    if found is None:
        looked = ", ".join([*folders, "the standard places"])
        raise ReadError(_LIBRARY, "is not there (looked in %s)" % looked)
    return os.path.realpath(found)


def _library(path: str) -> str:
    version = _version(path, os.stat(path).st_mtime_ns) if os.path.isfile(path) else ""
    return "%s%s" % (version and version + " ", _file(path))


@lru_cache(maxsize=8)
def _version(path: str, _changed: int) -> str:
    """Return ``2.27.7``, "" if the library has none. Seven programs of a node share one library."""
    try:
        return ".".join(map(str, library.scan(path).version))
    except ReadError:
        return ""


def _file(path: str) -> str:
    """Which file it is. To read 300 MB for a digest in every run would cost more than a needless measurement now and
    then: a file that was put there again counts as another."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error
    changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
    return "%s of %d bytes, %s" % (path, found.st_size, changed)


def _sealed(name: str, value: str, salt: str) -> str:
    return hashlib.sha256(("%s\0%s\0%s" % (salt, name, value)).encode("utf-8", "surrogateescape")).hexdigest()[:32]
