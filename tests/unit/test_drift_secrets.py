# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Command, FileChange, Plan
from ansible_collections.busbar.fabric.plugins.module_utils.core.redaction import find_secrets, scrub, secret_texts
from hypothesis import given, settings
from hypothesis import strategies as st


class Vaulted:
    def __str__(self) -> str:
        return "from the vault"


def test_names_tell_secrets_at_any_depth_and_vaulted_values_do_without() -> None:
    variables = {
        "ansible_become_password": "hunter22",
        "site": {"registry": {"api_token": "tok-1", "url": "x"}, "keys": [{"private_key": "line one\nline two"}]},
        "snmp": {"secret": {"auth": "auth-1", "level": 12345}},
        "plain": Vaulted(),
    }
    harmless = {"bypass_mode": "no", "passed": "no", "mpi": "compass", "ansible_ssh_private_key_file": "/home/id"}
    found = set(find_secrets({**variables, **harmless}, Vaulted))
    assert found == {"hunter22", "tok-1", "line one\nline two", "auth-1", "12345", "from the vault"}


def test_every_text_of_a_finding_is_scrubbed_and_the_check_stays() -> None:
    hidden = secret_texts(["hunter22", "line one\nline two", "hunter", "yes"])
    assert "yes" not in hidden
    assert scrub(repr("it's a \\ \" pass"), secret_texts(["it's a \\ \" pass"])) == "'[redacted]'"
    finding = Finding("a.b", "x", "drift", "major", "yes", "said hunter22!", "cmd --pw hunter22", "line two", "run it")
    clean = finding.scrubbed(hidden)
    assert (clean.have, clean.source, clean.why) == ("said [redacted]!", "cmd --pw [redacted]", "[redacted]")
    assert (clean.check, clean.want, clean.fix) == ("a.b", "yes", "run it")


def test_a_message_that_was_cut_within_a_secret_does_not_tell_its_beginning() -> None:
    hidden = secret_texts(["platform-of-the-cluster"])
    for cut, clean in (
        ("said platform-of-the-clus", "said [redacted]"),
        ("said 'platform-of-the-c' twice, 'platform-of-the'", "said '[redacted]' twice, '[redacted]'"),
        ("platform-of-the- ...", "[redacted] ..."),
        ("a platform is not a secret", "a platform is not a secret"),
        ("platform-of-the-cluster", "[redacted]"),
    ):
        assert scrub(cut, hidden) == clean


# What may stand in a user's name, a password or a token, and what people forget to escape there.
SECRET = st.text(st.sampled_from("aZ09-._~!$&'()*+,;=:%@[]{}|^`\\ü"), min_size=4, max_size=12).map(
    lambda text: f"s3{text}s3"
)
PASSWORD = st.text(st.sampled_from("aZ09-._~!$&'()*+,;=:%@/?#[]{}|^`\\ü"), max_size=12).map(lambda text: f"s3{text}s3")


@given(
    before=st.sampled_from(["", "http_proxy=", "'", '{"url": "', "(", "git+", "http://other.example.org/,"]),
    scheme=st.sampled_from(["https", "http", "HTTPS", "socks5h", "ftp"]),
    userinfo=st.one_of(SECRET, st.builds(lambda user, word: f"{user}:{word}", st.sampled_from(["", "u"]), PASSWORD)),
    host=st.sampled_from(["git.example.org", "proxy:3128", "[2001:db8::1]:80", "10.0.0.1"]),
    after=st.sampled_from(["", "/x.git", "/x@v1", "?a=b", "'", '"}', "/,http://other", "#a@b", " and more"]),
    slashes=st.sampled_from(["//", r"\/\/"]),
)
@settings(max_examples=20 * settings().max_examples)
def test_no_part_of_an_address_before_its_host_is_told(
    before: str, scheme: str, userinfo: str, host: str, after: str, slashes: str
) -> None:
    clean = scrub(f"{before}{scheme}:{slashes}{userinfo}@{host}{after}", ())
    assert "s3" not in clean
    assert "[redacted]@" in clean
    assert scrub(clean, ()) == clean
    if "@" not in after:
        assert host in clean


@pytest.mark.parametrize(
    "text",
    [
        "ssh root@node01 -p 22: Permission denied",
        "rsync a@b:/x https://mirror.example.org/pool/x_1.2@amd64.deb",
        "ssh://git@github.com:22/org/repo.git",
        "https://mirror:8080/npm/@scope/pkg@1.2?at=a@b",
        "user@.service, mail ops@example.org, see https://example.org/ or ask@example.org",
        '{"url": "https://[2001:db8::1]:80/x", "mail": "a@b"}',
        "http://127.0.0.1:8080/@x",
    ],
)
def test_what_is_no_user_of_an_address_stays(text: str) -> None:
    assert scrub(text, ()) == text


@pytest.mark.parametrize("word", ["a", "http://a/", "http://a@", "http://a:b/@", "a:/", "http://"])
def test_a_long_word_takes_no_longer_than_it_is_long(word: str) -> None:
    start = time.monotonic()
    scrub(word * (1_000_000 // len(word)), ())
    assert time.monotonic() - start < 30  # a quadratic search takes an hour


def test_what_a_tool_said_and_was_given_holds_no_users_of_addresses() -> None:
    """In a task's own output, too: a failed module's message, findings and commands are shown as they are."""
    address = "https://s3cr3t@git.example.org/x and http://u:s3@cr3t@proxy:1"
    error = ReadError(f"git clone {address}", f"exited with 128: fatal: {address}")
    finding = Finding("a.b", "x", "drift", "major", address, address, address, address, address)
    result = Plan((finding,), (FileChange("/x", address, None),), (Command(("git", address), "x"),)).result()
    for text in (str(error), str(error.problem), json.dumps(result)):
        assert "s3" not in text
        assert "cr3t" not in text
        assert "[redacted]@git.example.org" in text
