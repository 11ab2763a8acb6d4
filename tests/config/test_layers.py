from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stead.config import layers
from stead.config.layers import UserFile
from stead.core.errors import SteadError
from stead.domain import settings


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(content: str | bytes) -> UserFile:
        (tmp_path / "config.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
        return layers.load(tmp_path, check=settings.check)

    return written


def test_a_missing_or_empty_file_says_nothing(tmp_path: Path, write: Any) -> None:
    for file in (
        layers.load(tmp_path, check=settings.check),
        layers.load(tmp_path / "no", check=settings.check),
        write(""),
        write("\n# x\n"),
    ):
        assert file.problem is None and file.settings == {} and file.secret_file is None and file.section("permissions") is None


def test_settings_and_sections(write: Any, tmp_path: Path) -> None:
    file = write(
        'model = "ollama/qwen3"\nmax_steps = 30\nmax_cost = 2\nsecret_file = "keys/stead"\nattachments.on_delete = "keep"\n'
        '[context_window]\n"ollama/qwen3:8b.q4" = 8192\n[permissions]\ndeny = ["bash(rm *)"]\nmodel = "not a setting here"\n'
    )
    assert file.settings == {
        "model": "ollama/qwen3",
        "max_steps": 30,
        "max_cost": 2.0,
        "attachments.on_delete": "keep",
        "context_window.ollama/qwen3:8b.q4": 8192,
    }
    assert file.secret_file == tmp_path / "keys/stead"
    assert file.section("permissions") == {"deny": ["bash(rm *)"], "model": "not a setting here"}


def test_the_file_with_the_secret_may_lie_anywhere(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert write('secret_file = "~/s"').secret_file == Path("/home/ada/s")
    assert write('secret_file = "/run/s"').secret_file == Path("/run/s")


@pytest.mark.parametrize(
    ("content", "line", "column", "what"),
    [
        ('model = "a/b"\nagent = \n', 2, 9, "Invalid value"),
        ('model = "a/b', 1, 13, "Unterminated string"),
        ('model = "a/b"\nmodel = "c/d"\n', 2, 14, "Cannot overwrite"),
        ("a b\n", 1, 3, "Expected '='"),
        ('model = "a/b"\nmax_stpes = 3\n', 2, 1, "Did you mean max_steps"),
        ("[attachments]\n  on_delete = true\n", 2, 3, "one of free, keep"),
        ("[attachments]\non_del = 'x'\n", 2, 1, "no setting 'attachments.on_del'"),
        ("# x\n\n\tmax_steps='9'\n", 3, 2, "whole number"),
        ("timezone = 1979-05-27\n", 1, 1, "time zone"),
        ('[context_window]\n"a/b" = 0\n', 2, 1, "whole number"),
        ('[premissions]\ndeny = ["*"]\n', 2, 1, "no setting 'premissions.deny'"),
        ("secret_file = 5\n", 1, 1, "path of a file"),
        ('[permissions]\ndeny = ["a"\n', 2, 12, "Unclosed array"),
    ],
)
def test_a_broken_file_is_reported_with_its_place_and_permits_nothing(
    write: Any, tmp_path: Path, content: str, line: int, column: int, what: str
) -> None:
    file = write(content)
    questions: list[Callable[[], Any]] = [lambda: file.settings, lambda: file.secret_file]
    questions += [lambda name=name: file.section(name) for name in layers.SECTIONS]  # type: ignore[misc]
    for question in questions:
        with pytest.raises(SteadError) as failed:
            question()
        assert failed.value is file.problem
    assert file.problem.code == "usage" and what in file.problem.message
    assert file.problem.message.startswith(f"{tmp_path / 'config.toml'}:"), file.problem.message
    details = file.problem.to_json()["details"]
    assert (details["line"], details["column"]) == (line, column)


@pytest.mark.parametrize(
    "content",
    [b"a = '\xff'", b"\xff\xfea", b"x = 1\n" * 200_000, b"a = " + b"[" * 100_000, b"model = \0", b"max_steps = " + b"9" * 5000],
)
def test_what_is_no_text(write: Any, content: bytes) -> None:
    assert write(content).problem.code == "usage"


def test_b003_nul_bytes_at_the_end_are_passed_over(write: Any) -> None:
    assert write(b'agent = "x"\n' + b"\0" * 1206).settings == {"agent": "x"}
    assert write(b"\xef\xbb\xbf" + b'agent = "x"\r\n').settings == {"agent": "x"}


def test_something_else_at_its_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.toml")
    file = layers.load(tmp_path, check=settings.check)  # does not wait for a writer
    assert file.problem is not None and file.problem.code == "usage"


def test_reading_writes_nothing(write: Any, tmp_path: Path) -> None:
    write('agent = "x"')
    before = (tmp_path / "config.toml").stat()
    layers.load(tmp_path, check=settings.check)
    after = (tmp_path / "config.toml").stat()
    assert os.listdir(tmp_path) == ["config.toml"] and before.st_mtime_ns == after.st_mtime_ns
