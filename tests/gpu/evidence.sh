#!/bin/sh
# A whole run on one real GPU node, by local connection: the suite's platform, a captured one, proof by the
# node's own libnccl, and a NCCL job that shows the file was read. Prints a transcript; docs/evidence/ holds one.
#   sh tests/gpu/evidence.sh PLATFORM LIBNCCL     as root, with ansible-core, ansible-runner and torch
set -u
platform=$1 library=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 2
export ANSIBLE_CONFIG="$root/ansible.cfg" ANSIBLE_HOME="$work/ansible" COLUMNS=140 NCCL_NVLS_ENABLE=0
# Read below.
export ANSIBLE_STDOUT_CALLBACK=ansible.builtin.default

say() { printf '\n$ %s\n' "$*"; }
run() { say "$*"; "$@"; printf '(exit code %s)\n' "$?"; }
# The verdict and the recap are what people read; the task lines in between are left out.
play() {
    say "ansible-playbook site.yml -i inventory $*"
    ansible-playbook site.yml -i "$work/inventory" "$@" >"$work/out" 2>&1
    code=$?
    sed -n '/^VERDICT/,/^$/p; /^node01 /p' "$work/out" | awk '!seen[$0]++'
    printf '(exit code %s)\n' "$code"
}

mkdir -p "$work/inventory"
inventory() {
    cat >"$work/inventory/hosts.yml" <<EOF
gpu_nodes:
  hosts:
    node01:
      ansible_connection: local
      ansible_python_interpreter: "{{ ansible_playbook_python }}"
      busbar_platform: $1
      busbar_fabric: infiniband
      busbar_nccl_libraries: [$library]
EOF
}

date -u +'%Y-%m-%d %H:%M UTC'
sed -n 's/^PRETTY_NAME=//p' /etc/os-release
uname -sr
ansible --version | sed -n '1p; s/ *\(python version = [0-9.]*\).*/\1/p; s/ *\(jinja version = [0-9.]*\).*/\1/p'
run nvidia-smi --query-gpu=index,name,pci.bus_id,driver_version --format=csv
run nvidia-smi --query-gpu=index,uuid,pci.bus_id,fabric.state,fabric.status --format=csv
rm -f /etc/nccl.conf

printf '\n== the platform %s\n' "$platform"
inventory "$platform"
play --check

printf '\n== a profile of its own\n'
run python3 -m busbar check -i "$work/inventory" --platform custom --write "$work/draft"
mkdir -p "$work/inventory/profiles"
cp "$work/draft/profiles/custom.yml" "$work/inventory/profiles/custom.yml"
run cat "$work/draft/profiles/custom.yml"
inventory custom
play --check
play --diff
play
run cat /etc/nccl.conf
run stat -c '%a %U' /etc/nccl.conf
run python3 -m busbar lint --library "$library" /etc/nccl.conf

printf '\n== what the library reads, and that the proof can fail\n'
cat >"$work/prove.py" <<'EOF'
import sys
sys.path.insert(0, "collections")
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import library as nccl_library, lint as nccl_lint, proof as nccl_proof
scanned = nccl_library.scan(sys.argv[1])
print("NCCL", ".".join(map(str, scanned.version)), "reads", len(scanned.names), "variables")
text = open("/etc/nccl.conf").read()
meant = nccl_lint.settings(nccl_lint.parse(text))
for what, candidate in (("as rendered", text), ("with a blank before =", text.replace("==", " =="))):
    proof = nccl_proof.prove(sys.argv[1], candidate, meant)
    print(f"{what}: {proof.outcome} {proof.message}")
print("the real file is untouched:", open("/etc/nccl.conf").read() == text)
EOF
run python3 "$work/prove.py" "$library"

printf '\n== a NCCL job reads it\n'
cat >"$work/job.py" <<'EOF'
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if dist.get_rank() == 0:
    print("sum", x[0].item(), "of", dist.get_world_size(), "ranks, NCCL", ".".join(map(str, torch.cuda.nccl.version())))
dist.destroy_process_group()
EOF
gpus=$(nvidia-smi -L | wc -l)
say "torchrun --nproc-per-node=$gpus job.py   # NCCL_DEBUG=INFO"
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET NCCL_TOPO_DUMP_FILE="$work/topo.xml" \
    timeout 240 python3 -m torch.distributed.run --standalone --nproc-per-node="$gpus" "$work/job.py" >"$work/job" 2>&1
printf '(exit code %s)\n' "$?"
grep -E '^sum' "$work/job"
grep -E 'NCCL_SOCKET_IFNAME set|Bootstrap: Using|Using network|Could not find|No device found' "$work/job" | sed 's/^[^ ]* \[[0-9]*\] //' | sort | uniq -c | head -8

printf '\n== what NCCL dumped, as a second source\n'
play --check -e "platform_nccl_topo_file=$work/topo.xml"

printf '\n== a drift, seen and mended\n'
sed -i 's/^NCCL_SOCKET_IFNAME==/NCCL_SOCKET_IFNAME=/' /etc/nccl.conf
play --check
play
play --check

printf '\n== CPU of one question to the node\n'
say "python3 -I -S - < bundle   # topology reader, nvidia-smi included"
python3 - "$work" <<'EOF'
import resource, subprocess, sys, time
sys.path[:0] = ["collections"]
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
main = f"\nfrom {bundle.PACKAGE}.core import host\nfrom {bundle.PACKAGE}.machine import topology\nt = topology.read(host.Host())\nprint(len(t.gpus), 'GPUs', [str(p) for p in t.problems])\n"
script = bundle.script(bundle.closure([f"{bundle.PACKAGE}.machine.topology"], bundle.source_of), main)
for _ in range(3):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    out = subprocess.run([sys.executable, "-I", "-S", "-"], input=script, text=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{out.stdout.strip()}  CPU {cpu:.2f} s, wall {time.monotonic() - start:.2f} s {out.stderr[-300:]}")
EOF
rm -f /etc/nccl.conf /etc/nccl.conf.*~
