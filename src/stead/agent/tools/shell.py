"""`bash`: one command in a process group of its own, its output read with bounded memory, and nothing left running after a stop.

How it ends:
- the shell exits: what is still in the pipe is read for at most `_DRAIN` seconds. Background children that hold the pipe live
  on; the output says so, and what they print later is read and dropped, so that they neither block nor die of it;
- the time limit: TERM to the group and to what the shell has below it elsewhere, KILL after `_GRACE`; the result has `error` set
  and the output so far;
- the caller is cancelled: TERM, KILL after `_GRACE_CANCELLED`, then `Interrupted` (a `CancelledError`) with the partial result.
  What had cut its ties with the shell before (a daemon) lives on and is named;
- this process dies: whoever recovers ends it (`agent/orphans.py`), by the mark that every child carries.

An exit code other than 0 is no error of the tool: it stands in the output, as people expect of a shell.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from stead.agent import orphans
from stead.agent.overlay.layer import current
from stead.agent.tools.base import Context, Input, Interrupted, Result, Tool
from stead.agent.tools.output import Output

if TYPE_CHECKING:
    import psutil

DEFAULT_SECONDS, MOST_SECONDS = 120, 600
_GRACE = 2.0  # seconds between TERM and KILL when the time is up
_GRACE_CANCELLED = 0.8  # when a person waits: control comes back within 2 s
_DRAIN = 1.0  # seconds for the rest of the output after the shell has exited
_CHUNK = 64 << 10
_MUCH = 1 << 20  # bytes of output that take more than a moment to be turned into text
_log = logging.getLogger(__name__)
_REST = "run the command again with its output in a file, or filtered, to see the rest"


class Bash(Input):
    command: Annotated[str, Field(description="Run by bash -c in the project folder. No terminal, no stdin.", min_length=1)]
    timeout: Annotated[float, Field(description="Seconds.", ge=0.1, le=MOST_SECONDS)] = DEFAULT_SECONDS
    background: SkipJsonSchema[bool] = False


async def run(context: Context, given: Bash) -> Result:
    """Run the command and give its output; see the module for how it ends."""
    if given.background:
        return Result(error="Background commands are not available yet; nothing was run. Use `&` with its output in a file.")
    if "\0" in given.command:
        return Result(error="A command cannot contain NUL; nothing was run.")
    output = Output(context.progress, folder=context.data_dir)
    mark = context.environ.get(orphans.MARK, "")
    reader = _Reader(output)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        shell = await _start(context, given.command, reader)
    except OSError as error:
        reader.close()
        return Result(error=_not_started(error, context))
    exited = asyncio.ensure_future(shell.wait())
    try:
        context.spawned(shell.pid, output.so_far)
        _log.debug("call %s: pid %d", mark, shell.pid)
        done, _ = await asyncio.wait([exited], timeout=given.timeout)
        if not done:
            await _end(shell.pid, exited, _GRACE)
            await reader.ended(_DRAIN)
            return await _told(
                reader, output, "", error=f"Stopped at the limit of {given.timeout:g} s; it may have done part of its work."
            )
        await reader.ended(_DRAIN)
        return await _told(reader, output, _notes(shell.pid, exited.result(), reader))
    except asyncio.CancelledError:
        await _end_at_once(shell.pid, exited)
        partial = Result(output=_with_note(output.capped(_REST)[0], orphans.outside(mark, shell.pid)))
        raise Interrupted(partial, loop.time() - begun) from None
    finally:
        _log.debug("call %s: %.1f s, %d bytes", mark, loop.time() - begun, output.size)
        exited.cancel()
        reader.leave()
        output.close()


async def _start(context: Context, command: str, reader: _Reader) -> asyncio.subprocess.Process:
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    layer = current()
    words, folder = ([shell, "-c", command], context.root) if layer is None else layer.command([shell, "-c", command])
    caller = asyncio.current_task()
    assert caller is not None
    cancels = caller.cancelling()

    async def begin() -> asyncio.subprocess.Process:
        if caller.cancelling() > cancels:  # nothing starts behind a stop, not even one that the caller has not heard of yet
            raise asyncio.CancelledError
        return await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=dict(context.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=reader.write_end,
            stderr=reader.write_end,
            start_new_session=True,
        )

    starting = asyncio.ensure_future(begin())
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(OSError, asyncio.CancelledError):  # in the very moment of starting: what was started must not stay
            process = await starting
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        reader.close()
        raise
    reader.open()
    return process


async def _end(group: int, exited: asyncio.Future[int], grace: float) -> None:
    """End the whole process group, and what is below it in other ones: TERM, then KILL; also when cancelled here."""
    tree = _Tree(group)
    try:
        tree.signal(signal.SIGTERM)
        await _gone(tree, exited, grace)
    finally:
        tree.look()  # what came meanwhile
        tree.signal(signal.SIGKILL)
    await _gone(tree, exited, grace)


async def _end_at_once(group: int, exited: asyncio.Future[int]) -> None:
    if exited.done() and not _members({group}):
        return
    with suppress(asyncio.CancelledError):  # a second cancellation only cuts the grace; the first one is raised by the caller
        await _end(group, exited, _GRACE_CANCELLED)


async def _gone(tree: _Tree, exited: asyncio.Future[int], seconds: float) -> None:
    """Wait until nothing of the tree runs any more; at most `seconds`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until and not (exited.done() and not tree.lives()):  # noqa: ASYNC110
        await asyncio.sleep(0.02)  # the members are other people's children: nobody tells us when they end


class _Tree:
    """A command's process group and what is below its members in other groups. Groups that are wholly its own are signalled as
    such, so that nobody escapes by forking."""

    def __init__(self, group: int) -> None:
        self._groups = {group}
        self._single: dict[int, psutil.Process] = {}
        self.look()

    def look(self) -> None:
        """Take in what is there now."""
        import psutil

        for pid in [*_members(self._groups), *self._single]:
            with suppress(psutil.Error, OSError):
                for process in psutil.Process(pid).children(recursive=True):
                    if os.getpgid(process.pid) == process.pid:
                        self._groups.add(process.pid)
                    self._single[process.pid] = process

    def signal(self, number: signal.Signals) -> None:
        """Signal every process once."""
        import psutil

        for process in self._single.values():
            with suppress(psutil.Error, OSError):
                if os.getpgid(process.pid) not in self._groups:
                    process.send_signal(number)
        for group in self._groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)

    def lives(self) -> bool:
        """Whether anything of it still runs."""
        return bool(_members(self._groups)) or any(map(orphans.lives, self._single.values()))


def _members(groups: set[int]) -> list[int]:
    """The processes of these groups that run, and do not only wait to be collected."""
    import psutil

    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):
            if os.getpgid(pid) in groups and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def _notes(group: int, code: int, reader: _Reader) -> str:
    ended = f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
    if reader.at_end:
        return f"[{ended}]"
    running = ", ".join(map(str, _members({group})))
    return (
        f"[{ended}; processes that it started are still running in the background{f' (pid {running})' if running else ''}. "
        "What they print from now on is not shown: send it to a file to read it later]"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _not_started(error: OSError, context: Context) -> str:
    if error.errno == errno.E2BIG:
        return "The command is too long to be started; write it to a file and run that."
    if not context.root.is_dir():
        return f"The project folder {context.root} does not exist; nothing was run."
    return f"The command could not be started: {error.strerror or error}."


async def _told(reader: _Reader, output: Output, note: str, error: str | None = None) -> Result:
    """The result, made beside the event loop when there is much of it."""
    reader.leave()
    if output.size < _MUCH:
        return _result(output, note, error)
    return await asyncio.to_thread(_result, output, note, error)


def _result(output: Output, note: str, error: str | None = None) -> Result:
    shown, cut = output.capped(_REST)
    return Result(output=_with_note(shown, note), error=error, full=output.whole() if cut else None)


def _with_note(shown: str, note: str) -> str:
    return f"{shown}{'' if not shown or shown.endswith(chr(10)) else chr(10)}{note}" if note else shown


class _Reader:
    """The read end of the command's pipe on the event loop."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def at_end(self) -> bool:
        """Whether every holder of the pipe has closed it."""
        return self._ended.done()

    def open(self) -> None:
        """The child has its copy of the write end: close ours and read."""
        os.close(self.write_end)
        self.write_end = -1
        asyncio.get_running_loop().add_reader(self._read_end, self._read)

    async def ended(self, seconds: float) -> None:
        """Wait for the end of the output, at most `seconds`."""
        await asyncio.wait([self._ended], timeout=seconds)

    def leave(self) -> None:
        """Stop listening: what comes from now on is read and dropped until the pipe ends."""
        self._output = None  # type: ignore[assignment]

    def close(self) -> None:
        """Close both ends of a pipe that nobody uses."""
        for fd in (self._read_end, self.write_end):
            if fd >= 0:
                os.close(fd)
        self._read_end = self.write_end = -1

    def _read(self) -> None:
        try:
            data = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            if self._output is not None:
                self._output.feed(data)
            return
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)
        self._read_end = -1
        if not self._ended.done():
            self._ended.set_result(None)


BASH = Tool(
    name="bash",
    description=(
        "Run a shell command in the project folder and return its output (stdout and stderr together) and exit code. "
        "Each call is a new shell: `cd` and variables do not carry over. Long output is shortened in the middle."
    ),
    input=Bash,
    run=run,
    effect="bash",
)
