# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar preflight``: measure whether the nodes of a job are fast together, by steps in its allocation."""
