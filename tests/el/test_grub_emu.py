# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of GRUB's language, as the suite reads them and as the real grub-emu and grub-script-check do.

BUSBAR_GRUB_SEED says which random lines are tried. Skipped where the two programs lack and
cannot be installed.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import grub

from tests import debian, series

PROGRAMS = {"grub-emu": "grub-emu", "grub-script-check": "grub-common"}
VARIABLES = {"x": "1", "y": "p  q ", "none": "", "tuned_params": "nopti nohz"}
WORDS = (
    *("iommu=pt", "intel_iommu=on", "quiet", "a=", "b", "pci=config_acs=", "0000:00:01.0", "memmap=4G$0x1000", "--"),
    *(" ", " ", " ", "  ", ";", ";0000:00:02.0", "|", "&", "{", "}", "<", ">", "'", '"', "\\", "#", "@", "=", ":", ","),
    *("$x", "$y", "${y}", "$none", "$tuned_params", '"$y"', "$", "${", "$1", "$2", "\\$", "\\;", '\\"', "\\x41"),
    *('"a b"', "'c d'", ".*", "c?", "[a", "b]", "!", "~", "`", "(", ")", "%", "\u00e9"),
)


@pytest.fixture(scope="module")
def _programs() -> None:
    lacking = debian.install(PROGRAMS)
    if lacking:
        pytest.skip(lacking)


def is_refused(line: str) -> bool:
    done = subprocess.run(["grub-script-check"], input=f"linux - {line}\n", capture_output=True, text=True, check=False)
    return done.returncode != 0


def words_of_grub(lines: list[str], folder: Path) -> list[list[str]]:
    """Each line's words by the real shell of GRUB, empty ones left out."""
    script = ["set pager=0", *(f'set {name}="{value}"' for name, value in VARIABLES.items()), "echo"]
    script.append('function words { echo begin; for word in "$@"; do echo "[$word]"; done; echo end; }')
    script += [f"words {line}" for line in lines]
    (folder / "grub.cfg").write_text("\n".join([*script, "exit", ""]))
    done = subprocess.run(["grub-emu", "-d", folder], input="\n", capture_output=True, text=True, check=True)
    found: list[list[str]] = []
    ended = True
    for row in done.stdout.replace("\r", "").split("\n"):
        if row == "begin":
            found.append([])
        ended = row == "end" or (ended and row != "begin")
        if not ended and row.startswith("[") and row != "[]":
            found[-1].append(row[1:-1])
    return found


def kernel_line(words: list[str]) -> str:
    """grub-core/lib/cmdline.c: what has a blank gets quotes, quotes and backslashes one more backslash."""
    made = []
    for word in words:
        text, at = "", 0
        while at < len(word):
            hexadecimal = word[at : at + 2] == "\\x" and all(
                c in "0123456789abcdefABCDEF" for c in word[at + 2 : at + 4]
            )
            if hexadecimal and len(word) >= at + 4:
                text, at = text + word[at : at + 4], at + 4
            else:
                text, at = text + ("\\" if word[at] in "\\'\"" else "") + word[at], at + 1
        made.append(f'"{text}"' if " " in word else text)
    return " ".join(made)


@pytest.mark.usefixtures("_programs")
@pytest.mark.parametrize("count", series.first(300, 2000))
def test_random_lines_are_read_as_grub_does(tmp_path: Path, count: int) -> None:
    chosen = random.Random(int(os.environ.get("BUSBAR_GRUB_SEED", "31")))
    lines = ["".join(chosen.choices(WORDS, k=chosen.randint(1, 9))) for _ in range(count)]
    # An assignment behind ; would change the lines that follow.
    lines = [line for line in lines if not (";" in line and "=" in line.partition(";")[2])]
    readable = [line for line in lines if not is_refused(line)]
    scope = {name: (value,) for name, value in VARIABLES.items()}
    for line, words in zip(readable, words_of_grub(readable, tmp_path), strict=True):
        try:
            assert grub.passed(line, scope) == [kernel_line(words)], line
        except ParseError:
            # Blocks as arguments, and translated strings, are refused.
            assert "{" in line or '$"' in line, line
    for line in set(lines) - set(readable):
        if "[[" not in line and "]]" not in line:
            with pytest.raises(ParseError):
                assert grub.passed(line, scope) is None, line
    assert len(readable) > count / 4


@pytest.mark.usefixtures("_programs")
def test_what_is_written_comes_through_the_real_grub_whole(tmp_path: Path) -> None:
    chosen = random.Random(7)
    values = ["".join(chosen.choices("ab0 ;$&|<>{}()#*?[]!~`=,:@.$x${y", k=chosen.randint(1, 12))) for _ in range(200)]
    lines = [f"ro {grub.quote('a', value)} end" for value in values]
    assert not any(map(is_refused, lines))
    assert words_of_grub(lines, tmp_path) == [["ro", f"a={value}", "end"] for value in values]
