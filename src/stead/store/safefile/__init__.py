"""Files of the person, and stead's own: the only place that changes them. A crash leaves what was or what is to be, never a part.

`walk` finds the way to a folder, `state` looks, `write` gives content, `tree` changes names, `leftovers` sweeps, `exchange` is
the last step of a change that must not overwrite what nobody expected.
"""

from stead.store.safefile.errors import from_os
from stead.store.safefile.leftovers import leftovers, sweep
from stead.store.safefile.state import ABSENT, Kind, Stamp, State, opened, read_bytes, stamp, state
from stead.store.safefile.tree import link, make_folder, remove, remove_folder, rename, set_mode
from stead.store.safefile.walk import make_folders, private_folder, real_path, sync_folder
from stead.store.safefile.write import create_private, in_place, replace, write_private

__all__ = [
    "ABSENT",
    "Kind",
    "Stamp",
    "State",
    "create_private",
    "from_os",
    "in_place",
    "leftovers",
    "link",
    "make_folder",
    "make_folders",
    "opened",
    "private_folder",
    "read_bytes",
    "real_path",
    "remove",
    "remove_folder",
    "rename",
    "replace",
    "set_mode",
    "stamp",
    "state",
    "sweep",
    "sync_folder",
    "write_private",
]
