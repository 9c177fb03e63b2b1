# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What shell text sets, against what a shell makes of it."""

from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.shell_assignments import parse
from hypothesis import given, settings
from hypothesis import strategies as st

# What it sets: name, value, line, scope, and "if" where that is under a condition.
FORMS = [
    ("export NCCL_A=0 NCCL_B=1", ["NCCL_A 0 1 environment", "NCCL_B 1 1 environment"]),
    ("NCCL_A=1; export NCCL_A", ["NCCL_A 1 1 environment"]),
    ("export NCCL_A\nNCCL_A=1", ["NCCL_A 1 2 environment"]),
    ("export NCCL_A='x y' # NCCL_B=1", ["NCCL_A x y 1 environment"]),
    ('export NCCL_A="a,b"c', ["NCCL_A a,bc 1 environment"]),
    ("export \\\n  NCCL_A=1", ["NCCL_A 1 2 environment"]),
    ("export NCCL_A=a#b", ["NCCL_A a#b 1 environment"]),
    ("declare -x NCCL_A=1", ["NCCL_A 1 1 environment"]),
    ("declare NCCL_A=1", ["NCCL_A 1 1 shell"]),
    ("set -a\nNCCL_A=1\nset +a\nNCCL_B=1", ["NCCL_A 1 2 environment", "NCCL_B 1 4 shell"]),
    ("setenv NCCL_A 1", ["NCCL_A 1 1 environment"]),
    ("env -i NCCL_A=1 cmd", ["NCCL_A 1 1 argument"]),
    ("NCCL_A=1 cmd", ["NCCL_A 1 1 argument"]),
    ("if x; then\n export NCCL_A=1\nfi\nexport NCCL_B=1", ["NCCL_A 1 2 environment if", "NCCL_B 1 4 environment"]),
    ('[ -z "$NCCL_A" ] &&\n export NCCL_A=1\nexport NCCL_B=1', ["NCCL_A 1 2 environment if", "NCCL_B 1 3 environment"]),
    ("case $x in\n a) export NCCL_A=1;;\nesac", ["NCCL_A 1 2 environment if"]),
    ("f() {\n export NCCL_A=1\n}", ["NCCL_A 1 2 environment if"]),
    ("function f { export NCCL_A=1; }\nexport NCCL_B=1", ["NCCL_A 1 1 environment if", "NCCL_B 1 2 environment"]),
    ("export NCCL_A=1\nunset NCCL_A", ["NCCL_A 1 1 environment"]),
    ("# export NCCL_A=1", []),
    ('grep NCCL_A file; test -n "$NCCL_A"; echo $NCCL_A; cmd --level ${NCCL_A:-1}', []),
    (
        "NCCL_A = 1\nexport NCCL_B = 1; export NCCL_C= eth0",
        [*("NCCL_A None 1 cut", "NCCL_B None 2 cut")] + [*("NCCL_C None 2 cut", "NCCL_C  2 environment")],
    ),
    ("x 'a\n" + "b\n" * 60 + "'\nexport NCCL_A=1", ["NCCL_A 1 63 environment"]),
    ("mpirun -x NCCL_A_B=0 \\\n -x NCCL_A=1 x", ["NCCL_A_B 0 1 argument", "NCCL_A 1 2 argument"]),
    # only running it would tell
    ("export NCCL_A=$X", ["NCCL_A None 1 environment"]),
    ("export NCCL_A=`\nexport NCCL_B=1\necho `", ["NCCL_A None 1 unread if", "NCCL_B None 2 unread if"]),
    ('eval "export NCCL_A=$y"', ["NCCL_A None 1 unclear"]),
    ("for v in NCCL_A; do export $v=1; done", ["NCCL_A None 1 unclear if"]),
    ("alias m='mpirun -x NCCL_A=1'", ["NCCL_A None 1 unclear"]),
    ("site_set NCCL_A 1", ["NCCL_A None 1 unclear"]),
    ("echo NCCL_A=1 >> ~/.nccl.conf", ["NCCL_A 1 1 unclear"]),
    # what is printed, and what launchers hand on
    ("echo export NCCL_A==a,b", ["NCCL_A =a,b 1 printed"]),
    ("cat <<E\nSet NCCL_A=1 for tests.\nE\necho 'print NCCL_B=1 is a message'", []),
    ("export NCCL_A=${NCCL_A:-1} NCCL_B=${X-$Y}", ["NCCL_A 1 1 environment", "NCCL_B None 1 environment"]),
    ("> /etc/nccl.conf", []),
    ("APPTAINERENV_NCCL_A=1 apptainer exec i", ["NCCL_A 1 1 argument"]),
    ('echo "export NCCL_A=$(cat /x)"', ["NCCL_A None 1 printed"]),
    ("printf 'export NCCL_A=1\\n'", ["NCCL_A 1 1 printed"]),
    ("cat <<'EOF'\nexport NCCL_A=1\nEOF\nexport NCCL_B=1", ["NCCL_A 1 2 printed", "NCCL_B 1 4 environment"]),
    ("mpirun -x NCCL_A=a,b -x NCCL_B prog", ["NCCL_A a,b 1 argument"]),
    ("mpirun --mca mca_base_env_list 'NCCL_A=1;NCCL_B=2' x", ["NCCL_A 1 1 argument", "NCCL_B 2 1 argument"]),
    ("srun --export=ALL,NCCL_A=1,NCCL_B=2 x", ["NCCL_A 1 1 argument", "NCCL_B 2 1 argument"]),
    ("docker run -e NCCL_A=1 --env=NCCL_B=2 image", ["NCCL_A 1 1 argument", "NCCL_B 2 1 argument"]),
    ("docker run -e NCCL_A=1,NCCL_B=2 image", ["NCCL_A 1,NCCL_B=2 1 argument"]),
    (
        "srun --export=PATH,NCCL_A=mlx5_0,mlx5_1,NCCL_B=1 x",
        ["NCCL_A None 1 cut", "NCCL_A mlx5_0 1 argument"] + ["NCCL_B 1 1 argument"],
    ),
    ("srun apptainer exec --env NCCL_A=a,b,NCCL_B=2 i", ["NCCL_A a,b 1 argument", "NCCL_B 2 1 argument"]),
    ("mpiexec -genv NCCL_A 1 -n 2 x", ["NCCL_A 1 1 argument"]),
    ("ssh -t n 'NCCL_A=1 x'; ssh n 'export NCCL_B=2; x'", ["NCCL_A 1 1 argument", "NCCL_B 2 1 argument"]),
    ("sbatch --wrap='NCCL_A=1 x'; bash -c 'export NCCL_B=2'", ["NCCL_A 1 1 argument", "NCCL_B 2 1 argument"]),
    (
        "note 'try NCCL_A=1 if it hangs'; die 'NCCL_A=1 is bad'; echo NCCL_B=1 >&2",
        [f"NCCL_{v} None 1 unclear" for v in "AB"],
    ),
    ('O="-x NCCL_A=1 -x NCCL_B"\nE=ALL,NCCL_B=2', ["NCCL_A 1 1 argument", "NCCL_B 2 2 argument"]),
    ('export M="NCCL_A is read"', []),
    ("a=(--export=ALL,NCCL_A=1 -x NCCL_B=2)", ["NCCL_A 1 1 argument if", "NCCL_B 2 1 argument if"]),
    ("sbatch <<E\n#!/bin/sh\nexport NCCL_A=1\nE\n: <<E\nNCCL_B=1\nE", ["NCCL_A 1 3 argument"]),
    ("cat <<E | sudo tee /etc/nccl.conf\nNCCL_A=1\nE", ["NCCL_A 1 2 unclear", "NCCL_A 1 2 argument"]),
    ("echo NCCL_A=1 | tee -a /etc/environment", ["NCCL_A 1 1 unclear"]),
]


@pytest.mark.parametrize(("text", "found"), FORMS, ids=[text for text, _found in FORMS])
def test_each_form_is_read_as_a_shell_reads_it(text: str, found: list[str]) -> None:
    said = [f"{one.name} {one.value} {one.line} {one.scope}{' if' * one.conditional}" for one in parse(text)]
    assert said == found


# Words that a shell takes apart in all the ways there are; what it makes of them is asked of one.
WORDS = ("1", "a b", "$HOME", "a'b", 'a"b', "a;b", "#x", "a\\b", "(x", "a#b", "*", "&& x", "`", "${x", "mlx5_0,mlx5_1")
QUOTES = ("%s", "'%s'", '"%s"')


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(QUOTES)), min_size=1, max_size=4), st.booleans())
def test_what_is_told_as_certain_is_what_a_shell_sets(pairs: list[tuple[str, str]], apart: bool) -> None:
    lines = []
    for number, (word, quote) in enumerate(pairs):
        value = quote % word
        lines.append(f"NCCL_V{number}={value}; export NCCL_V{number}" if apart else f"export NCCL_V{number}={value}")
    told = [one for one in parse("\n".join(lines)) if one.scope == "environment" and one.value is not None]
    script = "\n".join(lines) + "\nenv -0"
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
        check=False,
        cwd="/proc/self/fdinfo",
    )
    if done.returncode == 0:
        really = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if "=" in entry)
        for one in told:
            assert really.get(one.name) == one.value, (lines, one)


@settings(max_examples=3 * settings().max_examples)
@given(st.text(st.sampled_from("NCCL_A=1 \n;&|'\"`$(){}<>#\\-x"), max_size=60))
def test_any_text_has_a_reading(text: str) -> None:
    parse(text)
