# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Access to a machine for readers: files under two roots, and tools with a time limit.

A reader gets a ``Host`` and nothing else, so a directory tree is a test machine. The *hardware root* holds /sys
and /proc, the *system root* /etc, /usr, /home and /root; on a real node both are "/". Only files and tools are
read here; the nouns beside this folder decide what they mean.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import stat
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union, cast

from . import child, orphans, redaction, trusted

# A tool's output is text for people: more than this is a runaway.
OUTPUT_LIMIT = 16 * 1024 * 1024
FILE_LIMIT = 4 * 1024 * 1024
_USUAL = 8192
_CHUNK = 1 << 20
_NULL_DEVICE = os.makedev(1, 3)
T = TypeVar("T")
Reader = TypeVar("Reader", bound=Callable[..., Any])
BOOT_ID = "/proc/sys/kernel/random/boot_id"
TOOL_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class Problem:
    """A source that could not be read or understood: ``source`` is the file or command, ``message`` the reason."""

    source: str
    message: str

    def __str__(self) -> str:
        return "%s: %s" % (self.source, self.message)


class ReadError(Exception):
    """A file or tool could not be read. Carries the Problem to report."""

    def __init__(self, source: str, message: str) -> None:
        # The source may quote a tool's arguments: an address among them may hold a token.
        self.problem = Problem(redaction.scrub(source, ()), redaction.scrub(message, ()))
        super().__init__(str(self.problem))


class ToolMissing(ReadError):
    """The tool is not installed."""


class Untrusted(ReadError):
    """Others than root may change it, so that it is neither run nor loaded."""


class ToolHung(ReadError):
    """The tool did not end in time; it was killed and abandoned."""


class ParseError(ValueError):
    """The text is not what the tool or file is known to contain. The message quotes the offending part."""


class Output(NamedTuple):
    """Output of a tool. ``command`` is the argv as one line, for provenance."""

    command: str
    rc: int
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        """Return the last line of stderr, else of stdout, where scontrol reports its failures."""
        return ((self.stderr.strip() or self.stdout.strip()).splitlines() or ["nothing"])[-1]

    def answer(self) -> str:
        """Return stdout if the tool ended with 0. Raises ReadError."""
        if self.rc != 0:
            raise ReadError(self.command, "exited with %d: %.200s" % (self.rc, self.last_words))
        return self.stdout


class Session:
    """What the modules of one audit share: reads, tools that hang, and the time for tools.

    patience: seconds for each call of a tool.   end: of time.monotonic, for all calls.
    """

    def __init__(self, patience: float = math.inf, end: float = math.inf) -> None:
        self.reads: Dict[Tuple[object, ...], object] = {}
        self.hung: Dict[str, float] = {}
        # A recording of a machine makes others.
        self.make_host: Callable[[str, str], Host] = Host
        self._patience = patience
        self._end = end

    def limit(self, argv: Sequence[str], seconds: float) -> float:
        """Return the seconds for a call of a tool. Raises ToolHung where it hung before: it would for each device."""
        seconds = max(0.1, min(seconds, self._patience, self._end - 0.2 - time.monotonic()))
        before = self.hung.get(argv[0], 0.0)
        if seconds <= before:
            raise ToolHung(" ".join(argv), "was not queried: %s did not respond within %g s" % (argv[0], before))
        return seconds


class Host:
    """Files and tools of one machine.

    hardware_root, system_root: directories that stand for "/".
    timeout: seconds granted to each tool.
    session: of the audit, where this is one.
    """

    session: Optional[Session] = None

    def __init__(self, hardware_root: str = "/", system_root: str = "/", timeout: float = 20.0) -> None:
        self.hardware_root = hardware_root
        # A null byte is in no path: require_roots reports it, which realpath would not.
        self._real_root = hardware_root if "\0" in hardware_root else os.path.realpath(hardware_root)
        self.system_root = system_root
        self.timeout = timeout

    def require_roots(self) -> None:
        """Raise ReadError for a root that is not a directory: everything would seem absent, and be written there."""
        for name, root in (("hardware_root", self.hardware_root), ("system_root", self.system_root)):
            if not os.path.isdir(root):
                raise ReadError(name, "%r is not a directory" % root)

    # -- hardware root -------------------------------------------------------------------------------------------

    def hardware(self, path: str) -> str:
        """Return the path on this machine of a /sys or /proc path."""
        return _under(self.hardware_root, path)

    def read(self, path: str, errors: str = "strict") -> Optional[str]:
        """Return the stripped text of a file below the hardware root; None if it is absent.

        errors: as bytes.decode takes it. Raises ReadError if it cannot be read, is not text, or is blank.
        """
        text = _read_text(self.hardware(path), path, errors=errors)
        if text is None:
            return None
        text = text.strip()
        if not text:
            raise ReadError(path, "is empty")
        return text

    def require(self, path: str) -> str:
        """Return the text of a file below the hardware root. Raises ReadError also if it is absent."""
        text = self.read(path)
        if text is None:
            raise ReadError(path, "is not there")
        return text

    def listdir(self, path: str) -> List[str]:
        """Return sorted names in a directory below the hardware root; [] if it is absent."""
        return _listdir(self.hardware(path), path)

    def realpath(self, path: str) -> Optional[str]:
        """Return ``path`` with links followed, as seen from the hardware root; None if nothing is there."""
        full = self.hardware(path)
        if not os.path.lexists(full):
            return None
        real = os.path.realpath(full)
        root = self._real_root
        if root == "/":
            return real
        if not (real + "/").startswith(root + "/"):
            raise ReadError(path, "is a link that leaves the hardware root %s" % self.hardware_root)
        return real[len(root) :] or "/"

    # -- system root ---------------------------------------------------------------------------------------------

    def system(self, path: str) -> str:
        """Return the path on this machine of an /etc, /usr or /home path."""
        return _under(self.system_root, path)

    def read_system(
        self, path: str, errors: str = "strict", limit: Optional[int] = None, tail: bool = False
    ) -> Optional[str]:
        """Return the text of a file below the system root, byte for byte; None if it is absent. Raises ReadError.

        errors: "replace" if invalid bytes do not matter.   limit: bytes that it may have.
        tail: read its last ones if it has more.
        """
        return _read_text(self.system(path), path, errors, limit, tail)

    def listdir_system(self, path: str) -> List[str]:
        """Return sorted names in a directory below the system root; [] if it is absent."""
        return _listdir(self.system(path), path)

    def mode_system(self, path: str) -> Optional[int]:
        """Return permission bits of a file below the system root; None if it is absent."""
        found = self._stat_system(path)
        return None if found is None else stat.S_IMODE(found.st_mode)

    def is_file_system(self, path: str) -> bool:
        """Return whether ``path`` below the system root is a regular file, links followed."""
        found = self._stat_system(path)
        return found is not None and stat.S_ISREG(found.st_mode)

    def readable_by_others(self, path: str, group: bool = False) -> bool:
        """Return whether users who are not root may read a file; group: or those of its group. Follows links."""
        found = self._stat_system(path)
        if found is None:
            return False
        real, top = os.path.realpath(self.system(path)), os.path.realpath(self.system_root)
        above = os.path.dirname(real)
        while above.startswith(top) and above not in (top, "/"):
            if not (self.mode_system(above[len(top.rstrip("/")) :]) or 0) & (0o011 if group else 0o001):
                return False
            above = os.path.dirname(above)
        return bool(found.st_mode & (0o044 if group and found.st_gid else 0o004))

    def size_system(self, path: str) -> Optional[int]:
        """Return the bytes of a file below the system root; None if it is absent."""
        found = self._stat_system(path)
        return None if found is None else found.st_size

    def _stat_system(self, path: str) -> Optional[os.stat_result]:
        return _unless_absent(lambda: os.stat(self.system(path)), path)

    # -- tools ---------------------------------------------------------------------------------------------------

    def doubt(self, path: str) -> str:
        """Return why a file below the system root must not be run or loaded; "" if it may be. See trusted.py."""
        return trusted.doubt(self.system(path), self.system_root)

    def tool(self, name: str) -> str:
        """Return the full path of a tool in the usual folders below the system root. Raises ToolMissing, Untrusted.

        One that others may change is passed over: they could put one before each of the system's.
        name: or the path of a tool elsewhere.
        """
        elsewhere = name.startswith("/")
        doubts = []
        for path in [name] if elsewhere else ["%s/%s" % (directory, name) for directory in TOOL_PATH]:
            full = self.system(path)
            if os.access(full, os.X_OK) and os.path.isfile(full):
                doubt = self.doubt(path)
                if not doubt:
                    return full
                doubts.append(untrusted(path, doubt))
        if doubts:
            raise doubts[0]
        absent = "is not an executable file" if elsewhere else "is not installed (looked in %s)" % ", ".join(TOOL_PATH)
        raise ToolMissing(name, absent)

    def has(self, name: str) -> bool:
        """Return whether a tool is installed, also if it must not be run: its use reports why."""
        try:
            self.tool(name)
        except ToolMissing:
            return False
        except Untrusted:
            pass
        return True

    def query(self, argv: Sequence[str], timeout: Optional[float] = None) -> str:
        """Return the output of a tool. Raises ReadError, also if it does not end with 0."""
        return self.run(argv, timeout).answer()

    def run(
        self, argv: Sequence[str], timeout: Optional[float] = None, leaves: bool = False, limit: Optional[int] = None
    ) -> Output:
        """Run a tool and return what it printed, whatever its exit code.

        limit: bytes that it may print.   leaves: it may leave a daemon running; else all that it started ends with it.

        Raises ToolMissing, ToolHung, or ReadError if it could not be started or did not print text.
        The output is read until the tool closes it; a tool that hangs is killed and *abandoned*: a process in
        uninterruptible sleep (nvidia-smi on a dead GPU) does not die, and waiting for it would hang us too.
        """
        tool = argv[0]
        seconds = self.timeout if timeout is None else timeout
        if self.session is not None:
            seconds = self.session.limit(argv, seconds)
        argv = [self.tool(tool)] + list(argv[1:])
        most = OUTPUT_LIMIT if limit is None else limit
        name = " ".join([os.path.basename(argv[0])] + argv[1:])
        environment = {"PATH": search_path(), "LC_ALL": "C", "HOME": "/"}
        # Package managers must not prompt, and what they install restarts no service.
        environment.update(DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1")
        with orphans.end_orphans(leaves) as mark:
            try:
                chunks, rc = child.run(argv, {**environment, **mark}, time.monotonic() + seconds, most)
            except OSError as error:
                raise ReadError(name, "could not be started: %s" % error.strerror) from error
        if any(len(data) > most for data in chunks):
            raise ReadError(name, "printed more than %d MiB" % (most >> 20))
        if rc is None:
            if self.session is not None:
                self.session.hung[tool] = seconds
            raise ToolHung(name, "did not respond within %g s and was abandoned" % seconds)
        stdout, stderr = (decode_text(data, name) for data in chunks)
        return Output(command=name, rc=rc, stdout=stdout, stderr=stderr)


def read_once(read: Reader) -> Reader:
    """Make a reader share what it reads: the modules of an audit read the same of the node, which does not change."""

    @functools.wraps(read)
    def shared(host: Host, *arguments: object, **named: object) -> object:
        if host.session is None:
            return read(host, *arguments, **named)
        roots = (host.hardware_root, host.system_root, host.timeout)
        key = (read.__module__, roots, arguments, tuple(sorted(named.items())))
        known = host.session.reads
        if key not in known:
            known[key] = read(host, *arguments, **named)
        return known[key]

    return cast(Reader, shared)


def untrusted(source: str, doubt: str) -> Untrusted:
    """Return the error. doubt: as trusted.doubt returns it."""
    return Untrusted(source, "is not run as root, because %s; %s" % (doubt, trusted.WAY_OUT))


def search_path() -> str:
    """Return PATH for tools: the usual folders in which only root can put a program."""
    return ":".join(directory for directory in TOOL_PATH if not trusted.doubt(directory))


@contextlib.contextmanager
def noted(source: str, problems: List[Problem]) -> Iterator[None]:
    """Make a Problem of what the body cannot read or understand. source: of what is not understood."""
    try:
        yield
    except (ReadError, ParseError) as error:
        problems.append(problem_of(error, source))


def problem_of(error: Union[ReadError, ParseError], source: str) -> Problem:
    """Return what could not be read, or what of the source could not be understood."""
    return error.problem if isinstance(error, ReadError) else Problem(source, str(error))


def attempt(step: Callable[[], T], source: str, problems: List[Problem]) -> Optional[T]:
    """Return the result of ``step``; None plus a Problem if it fails to read or parse. source: of a parse error."""
    with noted(source, problems):
        return step()
    return None


def read_each(host: Host, paths: Sequence[str], problems: List[Problem]) -> Dict[str, Optional[str]]:
    """Return path -> text of files below the system root, None if absent; unreadable ones are a Problem only."""
    found: Dict[str, Optional[str]] = {}
    for path in paths:
        with noted(path, problems):
            found[path] = host.read_system(path)
    return found


def _under(root: str, path: str) -> str:
    if "\0" in path:
        raise ReadError(repr(path), "is not a file name: it holds a zero byte")
    return path if root == "/" else "%s/%s" % (root.rstrip("/"), path.lstrip("/"))


def _read_text(
    full: str, path: str, errors: str = "strict", limit: Optional[int] = None, tail: bool = False
) -> Optional[str]:
    most = FILE_LIMIT if limit is None else limit
    data = _unless_absent(lambda: read_bytes(full, path, most, tail), path)
    if data is None:
        return None
    if len(data) > most and not tail:
        raise ReadError(path, "is larger than %d MiB" % (most >> 20))
    return decode_text(data, path) if errors == "strict" else data.decode("utf-8", errors).replace("\0", "\ufffd")


def read_bytes(full: str, path: str, most: int, tail: bool = False) -> bytes:
    """Return a file's content, and more than ``most`` bytes of one that is larger. Raises OSError, ReadError."""
    found = os.stat(full)
    if found.st_rdev == _NULL_DEVICE and stat.S_ISCHR(found.st_mode):
        return b""  # a common way to mask a file
    # Opening a pipe would block for ever, and opening a device may do anything.
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise ReadError(path, "is not a regular file")
    # For thousands of one-line files a Python stream costs more than the rest.
    descriptor = os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if tail:
            os.lseek(descriptor, max(found.st_size - most, 0), os.SEEK_SET)
        parts = [os.read(descriptor, _USUAL)]
        while parts[-1] and sum(map(len, parts)) <= most:
            parts.append(os.read(descriptor, _CHUNK))
    finally:
        os.close(descriptor)
    return b"".join(parts)


def _unless_absent(look: Callable[[], T], path: str) -> Optional[T]:
    """Return what is found; None if nothing is there. Raises ReadError."""
    try:
        return look()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error


def decode_text(data: bytes, source: str) -> str:
    """Raises ReadError, which names the source."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReadError(source, "is not text (byte %d)" % error.start) from error
    if "\0" in text:
        raise ReadError(source, "is not text (it holds a zero byte)")
    return text


def _listdir(full: str, path: str) -> List[str]:
    return sorted(_unless_absent(lambda: os.listdir(full), path) or ())
