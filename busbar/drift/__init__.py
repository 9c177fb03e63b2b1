# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The nightly check: asks every node, keeps what it said, and tells what changed since the last night."""
