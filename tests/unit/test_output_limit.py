# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node may make the control node read, by the ways in which connection plugins read."""

from __future__ import annotations

import fcntl
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import output_limit
from ansible_collections.busbar.fabric.plugins.plugin_utils.output_limit import TooMuchError

LIMIT = 100_000
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = subprocess.Popen
    yield
    subprocess.Popen = before  # type: ignore[misc]


def writes(size: str, to: str = "stdout") -> list[str]:
    """A command that writes so much, or without end."""
    once = f"sys.{to}.buffer.write(b'x' * 1000)"
    return [sys.executable, "-c", f"import itertools, sys\nfor _ in {size}: {once}"]


def by_communicate(argv: list[str]) -> bytes:
    """As local, podman, docker and kubectl do."""
    out, err = subprocess.Popen(argv, **PIPES).communicate(b"question")
    return bytes(out + err)


def by_read(argv: list[str]) -> bytes:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    with process.stdout as stream:
        return bytes(stream.read())


def by_readiness(argv: list[str]) -> bytes:
    """As ssh does: all that is there, whenever something is there."""
    process = subprocess.Popen(argv, **PIPES)
    said = b""
    try:
        with selectors.DefaultSelector() as selector:
            for stream in (process.stdout, process.stderr):
                assert stream
                fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_NONBLOCK)
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                for key, _events in selector.select(30):
                    piece = key.fileobj.read()  # type: ignore[union-attr]
                    if piece == b"":
                        selector.unregister(key.fileobj)
                    said += piece or b""
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe
            pipe.close()
    process.wait(30)
    return said


WAYS = (by_communicate, by_read, by_readiness)
Way = Callable[[list[str]], bytes]


@pytest.mark.parametrize("read", WAYS)
@pytest.mark.parametrize("to", ["stdout", "stderr"])
def test_no_more_than_the_limit_is_read(read: Way, to: str) -> None:
    with (
        pytest.raises(TooMuchError, match="its result is not valid: more than 100000 bytes") as raised,
        output_limit.limit_output(LIMIT) as bound,
    ):
        read(writes("itertools.count()", to))
    assert raised.type is TooMuchError
    [command] = bound._commands
    # What was started has ended.
    assert command.wait(30) != 0
    assert command._read < LIMIT + 200_000


@pytest.mark.parametrize("read", WAYS)
def test_what_is_below_the_limit_is_whole(read: Way) -> None:
    with output_limit.limit_output(LIMIT):
        assert read(writes("range(100)")) == b"x" * LIMIT


def test_outside_of_a_bound_nothing_is_counted() -> None:
    with output_limit.limit_output(10):
        pass
    assert len(by_communicate(writes("range(100)"))) == LIMIT


def taken_for(trouble: RuntimeError | None) -> None:
    try:
        by_communicate(writes("range(100)"))
    except TooMuchError:
        if trouble:
            raise trouble from None


@pytest.mark.parametrize("trouble", [RuntimeError("the connection broke"), None])
def test_a_plugin_that_takes_our_error_for_its_own_trouble_does_not_hide_it(trouble: RuntimeError | None) -> None:
    with pytest.raises(TooMuchError), output_limit.limit_output(10):
        taken_for(trouble)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="something else"), output_limit.limit_output(10):
        raise RuntimeError("something else")


def test_threads_have_bounds_of_their_own() -> None:
    said: dict[str, bytes | str] = {}

    def ask(name: str, argv: list[str]) -> None:
        try:
            with output_limit.limit_output(LIMIT):
                said[name] = by_communicate(argv)
        except TooMuchError as error:
            said[name] = str(error)

    asked = {"endless": writes("itertools.count()"), "honest": writes("range(100)")}
    threads = [threading.Thread(target=ask, args=item) for item in asked.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert said == {"endless": "its result is not valid: more than 100000 bytes", "honest": b"x" * LIMIT}


@pytest.mark.parametrize("read", WAYS)
def test_who_ends_a_bound_ends_the_wait_for_a_byte_a_second(read: Way) -> None:
    argv = [sys.executable, "-c", "import time\nwhile True: print('x', flush=True), time.sleep(1)"]
    begin = time.monotonic()
    with output_limit.limit_output(LIMIT) as bound:
        threading.Timer(0.5, bound.end).start()
        read(argv)
        assert time.monotonic() - begin < 30
        assert bound._commands[0].wait(30) == -9
        # What a retry starts afterwards ends at once.
        assert subprocess.Popen(argv).wait(30) == -9


def test_a_large_question_to_one_that_does_not_listen() -> None:
    with output_limit.limit_output(LIMIT):
        process = subprocess.Popen([sys.executable, "-c", "print('bye')"], **PIPES)
        assert process.communicate(b"x" * 1_000_000) == (b"bye\n", b"")
        echo = subprocess.Popen(["cat"], **PIPES)
        assert echo.communicate(b"x" * 90_000)[0] == b"x" * 90_000


def test_a_time_limit_is_kept_and_what_was_read_before_it_is_not_lost() -> None:
    with output_limit.limit_output(LIMIT):
        process = subprocess.Popen(["sh", "-c", "echo one; read x; echo $x"], **PIPES)
        # Its standard input stays open, for it is ours to close.
        process.stdin, stdin = None, process.stdin
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.3)
        assert stdin
        stdin.write(b"two\n")
        stdin.close()
        assert process.communicate(timeout=1800) == (b"one\ntwo\n", b"")


def test_inside_of_another_bound_that_one_counts() -> None:
    with output_limit.limit_output(LIMIT) as outer, output_limit.limit_output(10) as inner:
        assert inner is outer
        assert by_communicate(writes("range(100)")) == b"x" * LIMIT
