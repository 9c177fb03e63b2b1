"""The ``busbar`` command as a user runs it: wrong input gets a sentence and exit code 1, never a traceback."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from busbar import __version__, cli
from busbar.drift import lock
from tests import goldens

from .test_exit_code import code_of

ROOT = Path(__file__).resolve().parent.parent.parent
CLEAN = "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_SOCKET_IFNAME==eno1\n"
FAULTY = "NCCL_IB_HCA = mlx5_0\nNCCL_DEBUGG=INFO\n"


def busbar(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command; a traceback fails the test whatever it is about."""
    # Without the environment's own bin on PATH: `.venv/bin/busbar` has to find ansible by itself.
    base = {"PATH": os.defpath, "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "busbar", *map(str, arguments)]
    done = subprocess.run(argv, input=stdin, capture_output=True, env=base | environment, check=False)
    answer = subprocess.CompletedProcess(
        argv, done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    )
    assert "Traceback" not in answer.stdout + answer.stderr
    assert not any(ord(char) < 32 and char not in "\n\t" for char in answer.stdout + answer.stderr)
    return answer


def called(words: str, capsys: pytest.CaptureFixture[str], where: object = "") -> str:
    """Return what a command prints in this process, and its exit code. where: what it was called with besides."""
    code = code_of(shlex.split(words, comments=True))
    said = "".join(capsys.readouterr())
    assert said.replace("\n", "").isprintable()
    command, _blank, rest = words.partition(" ")
    return f"== {command} {rest!r} {where}: exit code {code}\n{said.replace(f'{Path.cwd()}/', '')}\n"


def test_version_is_printed() -> None:
    assert busbar("--version").stdout == f"busbar {__version__}\n"


def test_a_command_starts_without_what_only_others_need() -> None:
    program = "import sys\nfrom busbar.cli import main\nmain(['lint', '/dev/null'])\nprint('ansible' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_a_command(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert [code_of([command, word]) for word in ("--help", "--no-such-option")] == [0, 1]
    text = capsys.readouterr().out
    purpose, usage, *_options, example, codes, more_codes = text.splitlines()
    assert (len(purpose) <= 80, purpose[-1]) == (True, ".")
    assert usage.startswith(f"usage: busbar {command} [options]")
    assert f"{codes} {more_codes.strip()}" == (
        "exit codes: 0 good, 1 usage error or failure of the command, 2 findings,"
        " 3 something could not be judged, 4 locked by another run"
    )
    assert text.count("\n") <= 24
    words = example.split()
    assert words[:3] == ["example:", "busbar", command]
    assert cli._parser().parse_args(words[2:]).run


def test_the_first_help_is_one_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = {}
    for words in ("--help", "drift --help", "drift --help-all"):
        assert code_of(words.split()) == 0
        texts[words] = capsys.readouterr().out
    assert texts["--help"].count("\n") <= 24
    shown = (texts[f"drift {kind}"] for kind in ("--help", "--help-all"))
    few, every = ({*re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.M)} for text in shown)
    assert few < every
    assert f"{len(every - few)} more options: busbar drift --help-all" in texts["drift --help"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--timeout 0", "not a number of 1 or more"),
        ("--keep-days 7", "7 is less than 8"),
        ("""--notify "mail 'x" """, "is not a command: No closing quotation"),
        ("--mode rw", "not a file mode"),
    ],
)
def test_a_wrong_option_of_drift_is_named(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["drift", "-i", "x", *shlex.split(words)]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "function"),
    [
        (["drift", "-i", "x"], "busbar.drift.command._locked"),
        (["measure", "-i", "x"], "busbar.measure._MeasureRun"),
        (["remediate", "-i", "x"], "busbar.remediate.remediate"),
    ],
)
def test_a_lock_of_another_run_is_4(words: list[str], function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_arguments: object) -> None:
        raise lock.LockedError("another run")

    monkeypatch.setattr(function, locked)
    assert cli.main(words) == 4


LINT_FILES: dict[str, bytes] = {
    "clean.conf": CLEAN.encode(),
    "faulty.conf": FAULTY.encode(),
    "home/.nccl.conf": b"NCCL_SOCKET_IFNAME=docker0\n",
    "elf": b"\x7fELF\x02\x01\xff\xfe",
    "zero": b"NCCL_DEBUG=INFO\0\n",
    "large": b"NCCL_DEBUG=INFO\n" * 400_000,
    "libnccl.so.2": b"\x7fELF\x02\x01\x01",
}
VERSION = "--nccl-version 2.27.7"
# Arguments: files, options. environment. HOME is a folder with a file of its own.
LINTED: list[tuple[str, dict[str, str]]] = [
    *((f"{files} {VERSION}", {}) for files in ("clean.conf", "faulty.conf", "clean.conf faulty.conf absent.conf")),
    *((f"{files} {VERSION}", {}) for files in ("clean.conf absent.conf", "absent.conf")),
    (f"clean.conf {VERSION}", {"HOME": "home", "NCCL_IB_HCA": "mlx5_7"}),
    (f"clean.conf {VERSION}", {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}),
    # The user's own file does not contradict itself.
    (f"home/.nccl.conf {VERSION}", {"HOME": "home"}),
    *((path, {}) for path in ("elf", "zero", "large", ".", "loop", "x" * 300, "'esc\x1b[31m\n'")),
    *((f"clean.conf --nccl-version {version}", {}) for version in ("abc", "''")),
    *((f"clean.conf --library {path}", {}) for path in ("libnccl.so.2", ".", "clean.conf", "''")),
]


@pytest.mark.golden
def test_lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "home").mkdir()
    for name, content in LINT_FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    written = []
    for arguments, environment in LINTED:
        with monkeypatch.context() as patch:
            for name, value in {"HOME": "/nonexistent", **environment}.items():
                patch.setenv(name, value)
            written.append(called(f"lint {arguments}", capsys, environment or ""))
    goldens.text("lint", "".join(written))


@pytest.mark.parametrize(
    ("name", "code", "said"), [("clean.conf", 0, ""), ("faulty.conf", 2, "<stdin>"), ("elf", 1, "is not text")]
)
def test_lint_reads_standard_input(name: str, code: int, said: str) -> None:
    done = busbar("lint", "-", *VERSION.split(), stdin=LINT_FILES[name])
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_diagnose_reads_a_pipe_once_and_unpacks_standard_input(tmp_path: Path) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(b"n1:7:7 [0] NCCL INFO NCCL version 2.27.7+cuda12.9\n"))
    command = f"{sys.executable} -m busbar diagnose --json"
    for line in (f"{command} - < {log}", f"gunzip -c {log} | {command} /dev/stdin"):
        done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        assert '"2.27.7"' in done.stdout


def test_lint_shows_escapes_of_a_file_and_survives_a_terminal_without_unicode(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_DEBUG=\x1b]0;owned\x07é\nNCCL_IB_HCA=é\u202e\n", encoding="utf-8")
    for encoding in ("utf-8", "ascii"):
        done = busbar("lint", conf, "--nccl-version", "2.27.7", PYTHONIOENCODING=encoding)
        assert done.returncode == 2
        assert "\\x1b" in done.stdout


def test_lint_ends_quietly_when_nobody_reads_its_output(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text(FAULTY * 1000)
    command = f"{sys.executable} -m busbar lint {conf} | head -c 1"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "error"),
    [*((command, RuntimeError) for command in cli.COMMANDS), ("lint", KeyboardInterrupt), ("lint", SystemExit)],
)
def test_an_error_is_no_finding(command: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_parser", broken)
    if error is not SystemExit:
        assert cli.main([command]) == 1
    else:
        with pytest.raises(error):
            cli.main([command])
