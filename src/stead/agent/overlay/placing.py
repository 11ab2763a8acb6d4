"""The pieces of an effect put into the project: in which order, and each only while there stands what stood there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from stead.agent.overlay.effect import MOVED, Piece, readable
from stead.core.errors import SteadError
from stead.store import safefile

_CHUNK = 1 << 20
_OWN = 0o700
NOT_EMPTY = "Something that is not the command's is in it."


def ordered(pieces: Sequence[Piece]) -> list[Piece]:
    """The order in which they can be done, crash by crash: what has to make way, folders from the outside, files in the order in
    which the command wrote them (so that none looks older than what it was made of), what goes, folders from the inside."""
    way = tuple(
        one.path + "/" for one in pieces if one.before.kind == "directory" and one.after.kind not in ("absent", "directory")
    )

    def key(piece: Piece) -> tuple[int, int, str]:
        depth, after = piece.path.count("/"), piece.after
        if after.kind == "absent":
            folder = piece.before.kind == "directory"
            return (0 if way and piece.path.startswith(way) else 4 if folder else 3, -depth, piece.path)
        if after.kind == "directory":
            late = piece.before.kind == "directory" and after.mode & _OWN != _OWN
            return (5, -depth, piece.path) if late else (1, depth, piece.path)
        return 2, piece.mtime, piece.path

    return sorted(pieces, key=key)


def put(piece: Piece, content: Iterable[bytes] | None = None) -> None:
    """Make the path in the project what the command made of it, durably. `content`: of a file, in place of what the layer holds.
    Raises `conflict`, and leaves it alone, where something else stands there by now; else as safefile does."""
    at, before, after = piece.before.path, piece.before, piece.after
    if piece.moved:
        raise SteadError("conflict", MOVED)
    if after.kind == "absent":
        if before.kind == "directory":
            if not safefile.remove_folder(at) and safefile.state(at).kind != "absent":
                raise SteadError("conflict", NOT_EMPTY)
        else:
            safefile.remove(at, follow=False, expect=before.stamp)
        return
    if after.kind == "directory":
        if before.kind == "directory":
            safefile.set_mode(at, after.mode, expect=before.stamp)
            return
        if before.kind != "absent":
            safefile.remove(at, follow=False, expect=before.stamp)
        safefile.make_folder(at, after.mode | _OWN)
        return
    expect = before.stamp
    if before.kind == "directory":
        if not safefile.remove_folder(at):
            raise SteadError("conflict", NOT_EMPTY)
        expect = safefile.ABSENT
    if after.kind == "symlink":
        safefile.link(at, os.fsencode(after.target or ""), expect=expect)
    elif before.kind == "file" and content is None and only_mode(piece):
        safefile.set_mode(at, after.mode, expect=expect)
    else:
        data = content if content is not None else chunks(piece)
        safefile.replace(at, data, mode=after.mode, follow=False, expect=expect, apart=True)


def only_mode(piece: Piece) -> bool:
    """Whether a file has the same content and other permission bits."""
    before, after = piece.before, piece.after
    return before.kind == after.kind == "file" and before.mode != after.mode and before.digest == after.digest


def close_folders(pieces: Iterable[Piece]) -> None:
    """New folders that the command left without rights of ours get their bits, when all that is in them is."""
    new = [one for one in pieces if one.after.kind == "directory" != one.before.kind and one.after.mode & _OWN != _OWN]
    for piece in sorted(new, key=lambda one: -one.path.count("/")):
        if safefile.state(piece.before.path).kind == "directory":
            safefile.set_mode(piece.before.path, piece.after.mode)


def chunks(piece: Piece) -> Iterator[bytes]:
    """What the layer holds of a file."""
    readable(piece.after)
    with os.fdopen(safefile.opened(piece.after.path), "rb") as file:
        while part := file.read(_CHUNK):
            yield part


def put_repository(at: str, pieces: Sequence[Piece]) -> str | None:
    """Put what the command changed in a repository's own files, all of it or, where somebody else used the repository meanwhile,
    none; then a sentence. New objects do no harm to anybody, and git itself wrote in an order in which it may be cut off."""
    objects = f"{at}/objects/"
    wanted = [one for one in pieces if not (one.path.startswith(objects) and one.before.kind == "file" == one.after.kind)]
    for piece in wanted:
        if piece.before.kind != "directory" and (piece.moved or safefile.stamp(piece.before.path) != piece.before.stamp):
            return f"{at} (somebody else used the repository while the command ran)"
    for piece in ordered(wanted):
        try:
            put(piece)
        except (OSError, SteadError) as error:
            if piece.after.kind == "absent" and piece.before.kind == "directory":
                continue  # another one has put something into it
            return f"{at}, from {piece.path} on ({error})"
    close_folders(wanted)
    return None
