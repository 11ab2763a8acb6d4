"""What a shell command changed in the project: each path with what it was and what it became, whatever the size of the tree.

`Tree` keeps a table of the folder's states warm. Nothing is read before `Tree.start`; before a command nothing is walked, and after
it only what the system named as touched is looked at.
"""

from stead.agent.tree.shots import Coverage, Found, Limits, NotCovered, Seen, Shot
from stead.agent.tree.tree import Mark, Tree

__all__ = ["Coverage", "Found", "Limits", "Mark", "NotCovered", "Seen", "Shot", "Tree"]
