"""bash: how it ends, what is left running, what is seen of its output, and how much memory that takes."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from stead.agent import orphans
from stead.agent.tools import TOOLS, Interrupted, shell
from stead.agent.tools.environ import clean_environ
from stead.agent.tools.output import QUOTA, Output, plain
from tests.agent.tools.context import FakeContext
from tests.agent.tools.test_files import bad, good
from tests.support import ROOT, scale


@pytest.fixture
def context(tmp_path: Path) -> FakeContext:
    return FakeContext(tmp_path)


@pytest.fixture
async def marked(context: FakeContext) -> AsyncIterator[FakeContext]:
    """A context whose commands are known by a variable, so that what outlives them can be found and ended here."""
    context.environ = {**context.environ, "STEAD_TEST_MARK": str(context.root)}
    yield context
    for process in survivors(context):
        process.kill()


def survivors(context: FakeContext) -> list[psutil.Process]:
    """The processes, started by this test, that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("STEAD_TEST_MARK") == str(context.root) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def sessions(context: FakeContext) -> set[int]:
    """The sessions that they are in."""
    found = set()
    for process in survivors(context):
        with suppress(ProcessLookupError):
            found.add(os.getsid(process.pid))
    return found


async def started(context: FakeContext, text: str) -> None:
    """Wait until the running command has printed `text`."""
    async with asyncio.timeout(5):
        while text not in "".join(context.live):
            await asyncio.sleep(0.01)


# ---- the plain case ----


async def test_output_and_exit_code(context: FakeContext) -> None:
    assert (
        good(await context.use("bash", command="echo out; echo err >&2; pwd; exit 3")) == f"out\nerr\n{context.root}\n[exit code 3]"
    )
    assert good(await context.use("bash", command="true")) == "[exit code 0]"
    assert good(await context.use("bash", command="printf x")) == "x\n[exit code 0]"
    assert good(await context.use("bash", command="cat; [[ -t 0 ]] || echo no terminal")) == "no terminal\n[exit code 0]"
    assert good(await context.use("bash", command="kill -SEGV $$")) == "[killed by SIGSEGV]"


async def test_the_result_of_a_background_call_is_a_clear_refusal(context: FakeContext) -> None:
    assert "not available yet" in bad(await context.use("bash", command="touch f", background=True))
    assert os.listdir(context.root) == []
    assert "background" not in TOOLS["bash"].schema()["properties"]


async def test_what_cannot_be_started_is_an_error(context: FakeContext) -> None:
    assert "too long" in bad(await context.use("bash", command="#" * 200_000))
    context.root = context.root / "gone"
    assert "does not exist" in bad(await context.use("bash", command="true"))


async def test_nul_in_a_command_is_an_error(context: FakeContext) -> None:
    assert "NUL" in bad(await context.use("bash", command="echo a\0b"))


async def test_the_timeout_has_bounds(context: FakeContext) -> None:
    assert "600" in bad(await context.use("bash", command="true", timeout=601))
    assert TOOLS["bash"].schema()["properties"]["timeout"]["default"] == 120


async def test_output_is_shown_while_it_runs(context: FakeContext) -> None:
    await context.use("bash", command="echo one; echo two")
    assert "".join(context.live) == "one\ntwo\n"


# ---- B076, B081, B086: endings ----


async def test_the_time_limit_ends_the_group(marked: FakeContext) -> None:
    begun = time.monotonic()
    result = await marked.use("bash", command="echo begun; sleep 60 & sleep 60", timeout=0.3)
    assert result.output == "begun\n" and result.error is not None and "limit of 0.3 s" in result.error
    assert time.monotonic() - begun < 2 and survivors(marked) == []


async def test_the_time_limit_kills_what_ignores_term(marked: FakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_GRACE", 0.3)
    result = await marked.use("bash", command="trap '' TERM; echo begun; while :; do sleep 0.05; done", timeout=0.3)
    assert result.error is not None and result.output.startswith("begun\n")
    assert survivors(marked) == []


@pytest.mark.parametrize(
    "command",
    [
        "sleep 600 & echo done",
        "nohup sleep 600 2>/dev/null & echo done",
        "setsid sleep 600 & echo done",
        "(sleep 600 &) ; echo done",
    ],
)
async def test_b081_a_background_child_that_holds_the_pipe_does_not_hold_the_call(marked: FakeContext, command: str) -> None:
    begun = time.monotonic()
    output = good(await marked.use("bash", command=command))
    assert time.monotonic() - begun < 2
    assert output.startswith("done\n[exit code 0; processes that it started are still running in the background")
    assert [process.name() for process in survivors(marked)] == ["sleep"]  # and it lives on
    assert "[exit code 0]" in good(await marked.use("bash", command="true"))


async def test_b081_what_a_background_child_prints_later_neither_blocks_nor_kills_it(marked: FakeContext) -> None:
    loop = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.15; head -c 20000 /dev/zero; done; touch finished"
    good(await marked.use("bash", command=f"({loop}) & echo done"))
    async with asyncio.timeout(4):
        while not (marked.root / "finished").exists():
            await asyncio.sleep(0.02)


async def test_b081_the_end_of_the_output_of_a_pipeline_is_not_lost(context: FakeContext) -> None:
    assert (
        good(await context.use("bash", command="seq 20000 | tail -n 1; (sleep 0.2; echo late) &")) == "20000\nlate\n[exit code 0]"
    )


async def test_b086_abort_kills_children_that_ignore_term(marked: FakeContext) -> None:
    task = asyncio.ensure_future(
        marked.use("bash", command="echo begun; bash -c \"trap '' TERM INT; (while :; do :; done) & sleep 999\"")
    )
    await started(marked, "begun")
    await asyncio.sleep(0.2)
    assert len(survivors(marked)) >= 3
    begun = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - begun < 2
    assert survivors(marked) == []
    assert good(await marked.use("bash", command="echo next")) == "next\n[exit code 0]"


async def test_b086_abort_reaches_children_in_a_session_of_their_own(marked: FakeContext) -> None:
    task = asyncio.ensure_future(marked.use("bash", command="echo begun; setsid -w sleep 999"))
    await started(marked, "begun")
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert survivors(marked) == []


async def test_b086_abort_reaches_descendants_elsewhere_that_ignore_term_and_fork(marked: FakeContext) -> None:
    inner = "trap '' TERM INT; setsid sleep 998 & while :; do sleep 0.05; done"
    task = asyncio.ensure_future(marked.use("bash", command=f'echo begun; setsid bash -c "{inner}" & sleep 999'))
    await started(marked, "begun")
    async with asyncio.timeout(5):
        while len(sessions(marked)) < 3:
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 4)
    assert survivors(marked) == []


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("trap 'setsid sleep 997 &' TERM; echo begun; while :; do sleep 0.05; done", 1),  # it goes away when it is asked to end
        ("setsid bash -c '(sleep 997 &); sleep 998' & echo begun; sleep 999", 3),  # below a group of its own, its parent gone
    ],
    ids=["behind TERM", "without a parent"],
)
async def test_b086_abort_reaches_what_hides(command: str, count: int, marked: FakeContext) -> None:
    task = asyncio.ensure_future(marked.use("bash", command=command))
    await started(marked, "begun")
    async with asyncio.timeout(5):
        while len(survivors(marked)) < count:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert survivors(marked) == []


async def test_b089_an_abort_ends_what_runs_in_the_foreground_and_names_what_had_left(marked: FakeContext) -> None:
    marked.environ = {**marked.environ, orphans.MARK: f"{marked.root}.1"}
    task = asyncio.ensure_future(marked.use("bash", command="(setsid sleep 600 &); echo begun; sleep 999 & sleep 999"))
    await started(marked, "begun")
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(Interrupted) as caught:
        await task
    (left,) = survivors(marked)
    assert left.cmdline() == ["sleep", "600"]
    assert caught.value.partial.output == f"begun\n[still running, in a session of its own: sleep (pid {left.pid})]"


async def test_b087_nothing_is_started_behind_a_stop(marked: FakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[bool] = []
    stopped = False
    start = asyncio.create_subprocess_exec

    async def recorded(*args: Any, **more: Any) -> asyncio.subprocess.Process:
        starts.append(stopped)
        return await start(*args, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    for ticks in range(12):
        stopped = False
        task = asyncio.ensure_future(marked.use("bash", command="sleep 600"))
        for _ in range(ticks):
            await asyncio.sleep(0)
        stopped = True
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert starts and not any(starts)
    assert 0 < len(starts) < 12  # some stops came before the start, some behind it
    async with asyncio.timeout(2):
        while survivors(marked):
            await asyncio.sleep(0.02)


async def test_b076_an_interrupted_call_tells_what_it_had_put_out(marked: FakeContext) -> None:
    task = asyncio.ensure_future(
        marked.use("bash", command="echo half > file; echo half a result; printf 'and 10%%\\r20%%'; sleep 60")
    )
    await started(marked, "half a result")
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(Interrupted) as caught:
        await task
    assert caught.value.partial.output == "half a result\n20%"
    assert 0.2 < caught.value.seconds < 5
    assert (marked.root / "file").read_text() == "half\n"


async def test_b086_a_second_cancel_cuts_the_grace_but_not_the_kill(marked: FakeContext) -> None:
    task = asyncio.ensure_future(marked.use("bash", command="trap '' TERM; echo begun; while :; do sleep 0.05; done"))
    await started(marked, "begun")
    task.cancel()
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)
    async with asyncio.timeout(2):
        while survivors(marked):
            await asyncio.sleep(0.02)


async def test_b086_a_cancel_in_the_moment_of_starting_leaves_nothing(marked: FakeContext) -> None:
    for ticks in range(6):
        task = asyncio.ensure_future(marked.use("bash", command="sleep 600"))
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with asyncio.timeout(2):
        while survivors(marked):
            await asyncio.sleep(0.02)


async def test_calls_beside_each_other_do_not_mix(context: FakeContext) -> None:
    results = await asyncio.gather(*(context.use("bash", command=f"sleep 0.1; echo {number}") for number in range(8)))
    assert [result.output for result in results] == [f"{number}\n[exit code 0]" for number in range(8)]


async def test_no_descriptor_is_left_open(context: FakeContext) -> None:
    before = len(os.listdir("/dev/fd"))
    for command in ("true", "exit 1", "sleep 9"):
        await context.use("bash", command=command, timeout=0.2)
    context.root = context.root / "gone"
    await context.use("bash", command="true")
    await asyncio.sleep(0.05)
    assert len(os.listdir("/dev/fd")) <= before


# ---- output ----


async def test_escape_sequences_and_odd_bytes(context: FakeContext) -> None:
    coloured = r"\033[1;31mred\033[0m \033]8;;http://x\033\\link\033]8;;\033\\ \033]0;title\007"
    command = rf"printf '{coloured}bo\bold \377 \a\0 \\u0000 \032\r\n'"
    assert good(await context.use("bash", command=command)) == "red link bold \ufffd ␀ \\u0000 ␚\n[exit code 0]"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"10%\r50%\r100%\ndone\n", "100%\ndone\n"),
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"a\r\r\nb", "a\nb"),
        (b"progress\r", "progress"),
        (b"\r\n", "\n"),
        ("ü🎉\r設\n".encode(), "設\n"),
    ],
)
def test_b037_of_a_progress_line_the_last_state_stays_however_it_is_cut(raw: bytes, text: str) -> None:
    for size in (1, 2, 3, 100):
        output = Output(lambda _: None)
        for at in range(0, len(raw), size):
            output.feed(raw[at : at + size])
        assert output.whole().decode() == text
        output.close()


def test_b037_what_is_beyond_the_quota_is_counted() -> None:
    output = Output(lambda _: None, quota=1_000)
    for number in range(100_000):
        output.feed(b"%09d\n" % number)
    text = output.whole().decode()
    assert text.startswith("000000000\n") and text.endswith("000099999\n") and len(text) < 400_000
    missing = int(text.split("[… ")[1].split(" bytes")[0].replace(",", ""))
    assert missing + text.count("\n") * 10 - 20 - len("") == pytest.approx(1_000_000, abs=40)
    output.close()


def test_b037_a_full_disk_keeps_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(lambda _: None)

    def full(_: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output._spool, "write", full)
    for number in range(1_000):
        output.feed(b"%d\n" % number)
    assert output.whole().decode().endswith("999\n")
    output.close()


def test_b145_characters_that_come_in_pieces_are_whole() -> None:
    raw = "👨‍👩‍👧 é 設\n".encode() * 10
    output = Output(lambda _: None)
    for at in range(len(raw)):
        output.feed(raw[at : at + 1])
    assert output.whole() == raw
    output.close()


def test_a_stray_escape_does_not_hide_what_follows() -> None:
    rest = "x\n" * 100
    assert plain(b"a\x1b]" + rest.encode()).endswith(rest[1:])
    assert plain(b"a\x1bP" + rest.encode()).endswith(rest[1:])
    assert plain(b"\x1b[1;31mred\x1b") == "red"


def test_b147_escaped_text_is_not_altered() -> None:
    assert plain(b"\\u0000 \\\\u0000 \0") == "\\u0000 \\\\u0000 ␀"


async def test_b141_long_output_is_cut_in_the_middle_and_kept_in_full(context: FakeContext) -> None:
    result = await context.use("bash", command="seq 100000; exit 7")
    output = good(result)
    assert len(output.encode()) <= (48 << 10) + 100
    assert output.startswith("1\n2\n") and output.endswith("\n99999\n100000\n[exit code 7]")
    assert "lines) left out here; run the command again" in output
    assert result.full is not None and result.full.decode() == "".join(f"{n}\n" for n in range(1, 100_001))


MEMORY = """
import asyncio, resource, sys
from pathlib import Path
from tests.agent.tools.context import FakeContext

async def main():
    context = FakeContext(Path(sys.argv[1]))
    context.data_dir = context.root
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    await context.use("bash", command="seq 30000")
    context.live.clear()
    for command in sys.argv[2:]:
        before = peak()
        result = await context.use("bash", command=command, timeout=300)
        print(peak() - before, len(result.output.encode()), len(result.full or b""), len("".join(context.live)), flush=True)
        print(ascii(result.output[-40:]), flush=True)
        context.live.clear()

asyncio.run(main())
"""


def in_a_process(folder: Path, *commands: str) -> Iterator[tuple[int, int, int, int, str]]:
    """What each command costs a process of its own (bytes by which its highest use of memory rose), the bytes of the output and of
    the kept whole, the characters that were shown while it ran, and how the output ends."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(folder), *commands],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    lines = done.stdout.splitlines()
    for numbers, end in zip(lines[::2], lines[1::2], strict=True):
        grown, output, full, live = map(int, numbers.split())
        yield grown, output, full, live, ast.literal_eval(end)


PROGRESS = "yes \"$(printf '%s' 'sending incremental file list 42%  12.3MB/s')\" | tr '\\n' '\\r' | head -c {size}; echo; echo end"
NO_NEWLINE = "head -c {size} /dev/zero | tr '\\0' x"
WIDE = "yes '🎉 a line with one wide character, so that all of the text takes four bytes a character' | head -c {size}"
SMALL, MOST = 50_000, 100 << 20


@pytest.mark.slow
def test_b037_memory_is_bounded_and_so_is_what_is_shown(tmp_path: Path) -> None:
    sizes = (scale(2 << 30) * 10, 10 << 20, 150 << 20)
    told = list(in_a_process(tmp_path, *(text.format(size=size) for text, size in zip(KINDS, sizes, strict=True))))
    assert all(grown < MOST and output < SMALL and live < 300_000 for grown, output, _, live, _ in told), told
    assert [full for _, _, full, _, _ in told[:2]] == [0, 10 << 20]  # of the progress there is one line left
    assert told[0][3] < 100  # a rewritten line is shown once
    assert QUOTA < told[2][2] < QUOTA + (500 << 10)
    assert told[0][4].endswith("end\n[exit code 0]") and told[1][4].endswith("xxx\n[exit code 0]")
    assert os.listdir(tmp_path) == []  # no file is left in the data folder


KINDS = (PROGRESS, NO_NEWLINE, WIDE)


@pytest.mark.long
def test_b037_two_gigabytes(tmp_path: Path) -> None:
    commands = [PROGRESS.format(size=2 << 30), NO_NEWLINE.format(size=10 << 20), "yes | head -c 2000000000"]
    told = list(in_a_process(tmp_path, *commands))
    assert all(grown < MOST and output < SMALL and live < 300_000 for grown, output, _, live, _ in told), told
    assert told[2][4].endswith("y\n[exit code 0]")


def test_b037_what_is_told_of_a_running_command_is_bounded_at_any_moment() -> None:
    output = Output(lambda _: None)
    assert output.so_far() == ""
    output.feed(b"first line\n")
    assert output.so_far() == "first line\n"
    for number in range(200_000):
        output.feed(b"\xe8\xa8\xad %d\r" % number if number % 2 else b"line %d\n" % number)
        if number % 9_973 == 0:
            assert len(output.so_far().encode()) <= 16 << 10
    output.feed(b"half a line")
    told = output.so_far()
    assert told.startswith("first line\nline 0\n") and told.endswith(["line 199998\n設 199999", "half a line"][1])
    assert "left out here" in told and 12 << 10 < len(told.encode()) <= 16 << 10
    output.feed("é".encode() * 5_000_000)
    assert "\ufffd" not in output.so_far() and len(output.so_far().encode()) <= 16 << 10
    output.close()


@pytest.mark.parametrize("step", [1, 7, 4096, 65536])
def test_b037_however_it_comes_the_whole_is_the_same(step: int) -> None:
    raw = ("\x1b[31mrot\x1b[0m 設🎉é " * 20_000 + "\n" + "short\n" * 50_000).encode()[: 60_000 * step]
    output, plain_text = Output(lambda _: None), plain(raw).encode()
    for at in range(0, len(raw), step):
        output.feed(raw[at : at + step])
    assert output.whole() == plain_text
    output.close()


def test_b037_the_whole_is_the_beginning_up_to_the_quota_and_the_end() -> None:
    raw = b"".join(b"%07d\n" % number for number in range(100_000))
    for quota in (0, 8, 1_001, 600_000, 703_999, 704_000, 799_999, 800_000, 900_000):
        output = Output(lambda _: None, quota=quota)
        for at in range(0, len(raw), 10_000):
            output.feed(raw[at : at + 10_000])
        output.feed(b"")
        whole = output.whole()
        if b"were not kept" not in whole:
            assert whole == raw and quota > 400_000
        else:
            begin, _, end = whole.partition(b"\n[\xe2\x80\xa6 ")
            lost = int(end.split(b" ")[0].replace(b",", b""))
            end = end.partition(b"\xe2\x80\xa6]\n")[2]
            assert raw.startswith(begin) and raw.endswith(end) and len(begin) + lost + len(end) == len(raw)
            assert len(begin) >= min(quota, 48 << 10)
        output.close()


async def test_the_loop_stays_awake_while_a_command_floods_it(context: FakeContext) -> None:
    longest, last = 0.0, time.monotonic()
    task = asyncio.ensure_future(context.use("bash", command="yes | head -c 50000000"))
    while not task.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert longest < 1.0


# ---- B106: the environment ----


@pytest.fixture
def keys() -> Iterator[dict[str, str]]:
    yield {
        "PATH": os.environ["PATH"],
        "ANTHROPIC_API_KEY": "sk-ant-1",
        "OPENAI_API_KEY": "sk-2",
        "GEMINI_API_KEY": "g3",
        "GOOGLE_API_KEY": "g4",
        "OPENROUTER_API_KEY": "or5",
        "STEAD_SECRET": "s6",
        "STEAD_DATABASE_URL": "postgres://u:p@h/d",
        "STEAD_FAULT": "x",
        "STEAD_DATA": "/data",
        "MY_COPY": "stored-secret",
        "HEADER": "Bearer stored-secret",
        "SHORT": "abc",
        "LONGER": "abcdef",
        "GITHUB_TOKEN": "the person's own",
    }


def test_b106_keys_and_secrets_are_taken_out(keys: dict[str, str]) -> None:
    kept = clean_environ(keys, ["stored-secret", "abc", ""])
    assert kept == {name: keys[name] for name in ("PATH", "STEAD_DATA", "LONGER", "GITHUB_TOKEN")}


async def test_b106_a_child_sees_no_key(tmp_path: Path, keys: dict[str, str]) -> None:
    context = FakeContext(tmp_path, keys)
    output = good(await context.use("bash", command="env; tr '\\0' '\\n' < /proc/self/environ"))
    assert "sk-" not in output and "s6" not in output and "GITHUB_TOKEN" in output


async def test_signals_are_as_a_shell_expects_them(context: FakeContext) -> None:
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN  # in Python; a child must not inherit that
    assert good(await context.use("bash", command="yes | head -n 1; echo ${PIPESTATUS[0]}")) == "y\n141\n[exit code 0]"
