# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Name the kubelet's checkpoint: devices of each plugin, and the pods that have them."""

from __future__ import annotations

KUBELET = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
