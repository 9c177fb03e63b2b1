#!/bin/sh
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# Arguments: the upper layer, a directory for the overlay's own work, where it is mounted, the checkout, the tree that
# stands for the hardware, then a command.
set -e
upper=$1 work=$2 merged=$3 checkout=$4 hardware=$5; shift 5
mount -t overlay overlay -o "lowerdir=/,upperdir=$upper,workdir=$work" "$merged"
for place in /proc /dev "$checkout"; do
    mkdir -p "$merged$place"
    mount --rbind "$place" "$merged$place"
done
mkdir -p "$merged/srv/busbar-lab/hw"
mount --bind "$hardware" "$merged/srv/busbar-lab/hw"
exec chroot "$merged" env --chdir="$checkout" "$@"
