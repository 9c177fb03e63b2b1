#!/bin/sh
# `make demo`: two simulated nodes without root or containers. Converges them, breaks one, shows what is found.
set -eu
cd "$(dirname "$0")/.."
# Of a folder that somebody names nothing is removed.
lab=${1:-.demo}
[ $# -gt 0 ] || rm -rf "$lab"
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
play() {
    say "ansible-playbook site.yml -i $lab/inventory $*"
    code=0
    # DEMO_OPTIONS: words without blanks.
    # shellcheck disable=SC2086
    ANSIBLE_DISPLAY_SKIPPED_HOSTS=false ansible-playbook site.yml -i "$lab/inventory" "$@" ${DEMO_OPTIONS-} || code=$?
    echo "exit code $code"
}
say "python3 -m lab create          # two healthy simulated nodes, hgx-h100 on InfiniBand and hgx-h200 on RoCE"
python3 -m lab -d "$lab" create
play
[ "$code" -eq 0 ]
say "python3 -m lab break node02 rail-missing; python3 -m lab break node01 nvlink-down; python3 -m lab break node01 conf-edited"
python3 -m lab -d "$lab" break node02 rail-missing
python3 -m lab -d "$lab" break node01 nvlink-down
python3 -m lab -d "$lab" break node01 conf-edited
play --check
[ "$code" -eq 2 ]
say "python3 -m lab repair ... all"
python3 -m lab -d "$lab" repair node01 all
python3 -m lab -d "$lab" repair node02 all
play --check
[ "$code" -eq 0 ]
echo
echo "This was simulated: the nodes are directory trees in $lab. \`python3 -m lab faults\` lists what else can break."
