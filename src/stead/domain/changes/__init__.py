"""Changes: what the agent did to files. The before-image is durable before a tool touches a file (I5).

`change.captured` says what a path was and what it is about to become, `change.applied` that it happened; a crash between the two is
settled by looking at the disk. `change.found` is what a command turned out to have changed, `change.uncovered` what cannot be taken
back. Paths are relative to the project with `/`, outside of it absolute; a name that is not UTF-8 is percent-encoded.
"""

from stead.domain.changes.chain import ABSENT, Back, Load, Piece, Side, replay, same, take_back
from stead.domain.changes.events import (
    FEATURE,
    ChangeApplied,
    ChangeCaptured,
    ChangeFailed,
    ChangeFound,
    ChangeFreed,
    ChangeKept,
    ChangeTrimmed,
    ChangeUncovered,
    ChangeUntrimmed,
    FileState,
    TrimsTold,
    Why,
)
from stead.domain.changes.net import SHOWN_BYTES, Net, change_json, file_json, net, patch_of
from stead.domain.changes.records import (
    Change,
    Uncovered,
    keep,
    kept,
    listed,
    made_folders,
    of_rewind,
    standing,
    state_of,
    uncovered,
    undone,
    unique,
    unsettled,
)

__all__ = [
    "ABSENT",
    "FEATURE",
    "SHOWN_BYTES",
    "Back",
    "Change",
    "ChangeApplied",
    "ChangeCaptured",
    "ChangeFailed",
    "ChangeFound",
    "ChangeFreed",
    "ChangeKept",
    "ChangeTrimmed",
    "ChangeUncovered",
    "ChangeUntrimmed",
    "FileState",
    "Load",
    "Net",
    "Piece",
    "Side",
    "TrimsTold",
    "Uncovered",
    "Why",
    "change_json",
    "file_json",
    "keep",
    "kept",
    "listed",
    "made_folders",
    "net",
    "of_rewind",
    "patch_of",
    "replay",
    "same",
    "standing",
    "state_of",
    "take_back",
    "uncovered",
    "undone",
    "unique",
    "unsettled",
]
