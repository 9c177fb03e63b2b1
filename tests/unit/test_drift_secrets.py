# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.secrets import among, scrub, scrub_finding, worth_hiding


class Vaulted:
    def __str__(self) -> str:
        return "from the vault"


def test_names_tell_secrets_at_any_depth_and_vaulted_values_do_without() -> None:
    variables = {
        "ansible_become_password": "hunter22",
        "site": {"registry": {"api_token": "tok-1", "url": "x"}, "keys": [{"private_key": "line one\nline two"}]},
        "snmp": {"secret": {"auth": "auth-1", "level": 12345}},
        "plain": Vaulted(),
        "bypass_mode": "no secret",
        "passed": "no secret",
        "mpi": "compass",
        "ansible_ssh_private_key_file": "/home/busbar/.ssh/id",
    }
    found = set(among(variables, Vaulted))
    assert found == {"hunter22", "tok-1", "line one\nline two", "auth-1", "12345", "from the vault"}


def test_every_text_of_a_finding_is_scrubbed_and_the_check_stays() -> None:
    hidden = worth_hiding(["hunter22", "line one\nline two", "hunter", "yes"])
    assert "yes" not in hidden
    assert scrub(repr("it's a \\ \" pass"), worth_hiding(["it's a \\ \" pass"])) == "'[redacted]'"
    finding = Finding("a.b", "x", "drift", "major", "yes", "said hunter22!", "cmd --pw hunter22", "line two", "run it")
    clean = scrub_finding(finding, hidden)
    assert (clean.have, clean.source, clean.why) == ("said [redacted]!", "cmd --pw [redacted]", "[redacted]")
    assert (clean.check, clean.want, clean.fix) == ("a.b", "yes", "run it")


def test_a_message_that_was_cut_within_a_secret_does_not_tell_its_beginning() -> None:
    hidden = worth_hiding(["platform-of-the-cluster"])
    for cut, clean in (
        ("said platform-of-the-clus", "said [redacted]"),
        ("said 'platform-of-the-c' twice, 'platform-of-the'", "said '[redacted]' twice, '[redacted]'"),
        ("platform-of-the- ...", "[redacted] ..."),
        ("a platform is no secret", "a platform is no secret"),
        ("platform-of-the-cluster", "[redacted]"),
    ):
        assert scrub(cut, hidden) == clean


def test_the_user_of_an_address_goes_and_the_address_stays() -> None:
    assert scrub("git clone https://me:tok@git.example.org/x", ()) == "git clone https://[redacted]@git.example.org/x"
