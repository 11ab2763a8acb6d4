"""stead's own log: bounded in size, number and age, private, without a word of the conversation, for several processes at once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stead.agent.gate import parse
from stead.core.errors import SteadError
from stead.interfaces.cli import logs
from tests.agent.house import house, project, script, use
from tests.agent.tools.context import FakeContext
from tests.support import ROOT, scale


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The logger as it was."""
    logger = logging.getLogger("stead")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    for handler in [one for one in logger.handlers if one not in before[2]]:
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(before[0])
    logger.propagate = before[1]


def files(data: Path) -> dict[str, int]:
    """The log files and their sizes."""
    return {path.name: path.stat().st_size for path in sorted((data / "logs").iterdir())}


def whole(data: Path) -> str:
    """What all log files say, oldest first."""
    order = sorted((data / "logs").iterdir(), key=lambda path: -int(path.suffix[1:]) if path.suffix[1:].isdecimal() else 1)
    return "".join(path.read_text() for path in order)


def small(monkeypatch: pytest.MonkeyPatch, size: int = 4_000) -> None:
    monkeypatch.setattr(logs, "BYTES", size)


def test_nothing_is_made_before_there_is_something_to_say(tmp_path: Path) -> None:
    logs.to_file(tmp_path)
    logging.getLogger("stead.x").info("not at this level")
    assert list(tmp_path.iterdir()) == []
    logging.getLogger("stead.x").warning("said")
    (path,) = (tmp_path / "logs").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert path.read_text().endswith(f" {os.getpid()} WARNING stead.x: said\n")


@pytest.mark.parametrize(("name", "heard"), [("debug", 4), ("INFO", 3), ("", 2), ("nonsense", 2), ("error", 1)])
def test_the_level_is_that_of_the_variable(name: str, heard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEAD_LOG", name)
    logs.to_file(tmp_path)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("stead.x").log(level, "said")
    assert whole(tmp_path).count("said") == heard


def test_b033_the_log_is_bounded_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    logs.to_file(tmp_path)
    for number in range(2_000):
        logging.getLogger("stead.x").error("number %d %s", number, "x" * (number % 150))
    found = files(tmp_path)
    assert set(found) == {"stead.log", *(f"stead.log.{n}" for n in range(1, logs.FILES))}
    assert all(size <= 4_000 for size in found.values()) and sum(found.values()) > 4_000 * (logs.FILES - 2)
    said = [int(line.split("number ")[1].split()[0]) for line in whole(tmp_path).splitlines()]
    assert said == list(range(said[0], 2_000))  # nothing between is missing
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "logs").iterdir())


def test_b033_one_record_is_bounded_as_well(tmp_path: Path) -> None:
    logs.to_file(tmp_path)
    logging.getLogger("stead.x").error("é" * 1_000_000)
    assert sum(files(tmp_path).values()) < 20_000 and whole(tmp_path).endswith("é [cut]\n")


def test_b033_a_log_is_set_aside_after_a_week_and_removed_after_a_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    now = time.time()

    def written(name: str, days: int) -> None:
        (folder / name).write_text(time.strftime("%Y-%m-%d %H:%M:%S,000 1 ERROR stead: old\n", time.localtime(now - days * 86400)))
        os.utime(folder / name, (now - days * 86400,) * 2)

    written("stead.log", 3)
    logs.to_file(tmp_path)
    logging.getLogger("stead.x").error("one")
    assert set(files(tmp_path)) == {"stead.log"}
    logging.getLogger("stead").handlers[-1].close()
    for name, days in (("stead.log", 8), ("stead.log.1", 20), ("stead.log.2", 31), ("stead.log.9", 1), ("stead.log.old", 1)):
        written(name, days)
    logging.getLogger("stead.x").error("two")
    logging.getLogger("stead.x").error("three")
    assert set(files(tmp_path)) == {"stead.log", "stead.log.1", "stead.log.2"}
    assert (folder / "stead.log").read_text().count("\n") == 2 and "old" in (folder / "stead.log.1").read_text()


WRITER = """
import logging, sys
from pathlib import Path
from stead.interfaces.cli import logs
logs.BYTES = 20_000
logs.FILES = 40
logs.to_file(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    logging.getLogger("stead.x").error("writer %s says %d%s", sys.argv[2], number, "." * (number % 80))
"""


def test_b033_several_processes_write_and_rotate_without_losing_a_record(tmp_path: Path) -> None:
    count, env = 800, {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(n), str(count)], env=env) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    found = files(tmp_path)
    assert len(found) > 8 and all(size <= 40_000 + 16_384 for size in found.values())
    lines = whole(tmp_path).splitlines()
    for n in range(4):  # whole lines, each once
        said = [int(line.split(" says ")[1].rstrip(".")) for line in lines if f"writer {n} says" in line]
        assert sorted(said) == list(range(count))


def test_b033_a_process_that_stopped_while_it_rotates_neither_blocks_the_others_nor_lets_the_log_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    small(monkeypatch)
    monkeypatch.setattr(logs, "_TRIES", 3)
    logs.to_file(tmp_path)
    logging.getLogger("stead.x").error("first")
    folder = os.open(tmp_path / "logs", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    for _ in range(9):
        logging.getLogger("stead.x").error("x" * 1_000)
    assert set(files(tmp_path)) == {"stead.log"} and 4_000 < files(tmp_path)["stead.log"] <= 8_000
    os.close(folder)
    logging.getLogger("stead.x").error("last")
    assert set(files(tmp_path)) == {"stead.log", "stead.log.1"} and whole(tmp_path).endswith("last\n")


def test_b033_who_finds_that_another_was_faster_renames_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    logs.to_file(tmp_path)
    logging.getLogger("stead.x").error("x" * 3_500)
    folder, locked = tmp_path / "logs", logs._locked

    def late(fd: int) -> bool:
        (folder / "stead.log").rename(folder / "stead.log.1")
        (folder / "stead.log").write_text("of the other\n")
        return locked(fd)

    monkeypatch.setattr(logs, "_locked", late)
    logging.getLogger("stead.x").error("y" * 3_500)
    assert set(files(tmp_path)) == {"stead.log", "stead.log.1"}
    assert (folder / "stead.log").read_text().startswith("of the other\n") and "yyy" in (folder / "stead.log").read_text()


SECRET = "the words of a prompt"


def test_b033_of_an_exception_the_trace_is_logged_and_not_what_somebody_wrote(tmp_path: Path) -> None:
    logs.to_file(tmp_path)
    try:
        try:
            raise ValueError(f"cannot read {SECRET!r}")
        except ValueError as error:
            raise SteadError("provider_error", f"The provider said: {SECRET}") from error
    except SteadError:
        logging.getLogger("stead.x").exception("a fault")
    try:
        (tmp_path / "missing").read_bytes()
    except OSError:
        logging.getLogger("stead.x").exception("another")
    said = whole(tmp_path)
    assert SECRET not in said and "SteadError: provider_error" in said and "after ValueError\n" in said
    assert "test_logs.py" in said and "FileNotFoundError: [Errno 2]" in said


def test_a_log_that_cannot_be_written_disturbs_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    logs.to_file(tmp_path)
    logging.getLogger("stead.x").error("said")
    assert capfd.readouterr() == ("", "")


async def test_b033_at_debug_level_a_run_is_logged_without_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEAD_LOG", "debug")
    turns = [{"text": SECRET, "tools": [use("bash", command=f"echo {SECRET}"), use("read", path=SECRET)]}, {"text": SECRET}]
    async with house(tmp_path, models=script(turns)) as at:
        logs.to_file(at.data)
        rules = [parse("bash", "allow", "flag")]
        run = await at.prompt(None, SECRET, project=project(tmp_path), model="fake/m", rules=rules)
        assert (await run.result())["outcome"] == "done"
        assert "pid " in whole(at.data) and SECRET not in whole(at.data)
        assert not any(path.name.startswith("stead.log") for path in at.data.iterdir())  # they lie in a folder of their own


@pytest.mark.slow
async def test_b033_ten_thousand_tool_calls_at_debug_level_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEAD_LOG", "debug")
    small(monkeypatch, 2_000)
    context = FakeContext(tmp_path)
    context.environ = {**context.environ, "STEAD_CALL": "run.1"}
    logs.to_file(tmp_path)
    for _ in range(scale(10_000)):
        assert (await context.use("bash", command=f"echo {SECRET}")).output == f"{SECRET}\n[exit code 0]"
    said = whole(tmp_path)
    assert "run.1" in said and SECRET not in said
    assert 4_000 < sum(files(tmp_path).values()) <= 2_000 * logs.FILES
