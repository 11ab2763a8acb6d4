"""`stead provider`: keys come in by safe ways only, and never out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.door import stead
from tests.cli.small_server import serving

pytestmark = pytest.mark.usefixtures("data_dir")
KEY = "sk-very-secret-0123456789"


def test_a_key_from_stdin_is_stored_and_never_shown(data_dir: Path) -> None:
    done = stead("provider", "add", "openai", "--url", "http://127.0.0.1:9/v1", "--key-stdin", "--json", stdin=f"{KEY}\n".encode())
    assert done.json["provider"] == {
        "name": "openai", "kind": "openai", "url": "http://127.0.0.1:9/v1", "models": [], "disabled": False, "has_key": True,
        "key_env": None, "no_key": False, "origin": "stored",
    }  # fmt: skip
    shown = stead("provider", "list").out + stead("provider", "list", "--json").out + done.out + done.err
    assert KEY not in shown
    assert not [path for path in data_dir.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_the_key_reaches_the_provider() -> None:
    with serving([{"id": "b"}, {"id": "a", "context_window": 4096}]) as server:
        stead("provider", "add", "mine", "--kind", "openai", "--url", server.url, "--key-stdin", stdin=KEY.encode())
        found = stead("provider", "models", "mine", "--json").json
        assert [row["id"] for row in found["models"]] == ["a", "b"] and found["provider"] == "mine"
        assert set(found["models"][0]) == {"id", "context", "tools", "reasoning", "free", "size"}
        assert stead("provider", "models", "mine").lines[0] == "id\tcontext\ttools\treasoning\tfree\tsize"
        assert server.keys == [f"Bearer {KEY}"]  # the second time they were known
        stead("provider", "models", "mine", "--refresh")
        assert len(server.keys) == 2


def test_changing_the_address_keeps_the_key() -> None:
    stead("provider", "add", "openai", "--url", "http://127.0.0.1:9/v1", "--key-stdin", stdin=KEY.encode())
    with serving() as server:
        assert stead("provider", "add", "openai", "--url", server.url).code == 0
        assert stead("provider", "test", "openai").code == 0
        assert server.keys == [f"Bearer {KEY}"]


def test_a_test_says_clearly_how_it_went() -> None:
    with serving() as server:
        stead("provider", "add", "mine", "--kind", "openai", "--url", server.url, "--no-key")
        assert stead("provider", "test", "mine").out.startswith(f"ok: mine at {server.url}, 1 model (")
        assert stead("provider", "test", "mine", "--json").json["ok"] is True
        called = stead("provider", "test", "mine", "-m", "mine/small", "--json")
        assert called.json["model"] == "mine/small" and server.bodies[0]["model"] == "small"
    with serving(status=401, message="Incorrect API key") as server:
        stead("provider", "add", "mine", "--url", server.url, "--key-stdin", stdin=KEY.encode())
        done = stead("provider", "test", "mine", "--json")
        assert (done.code, done.json["error"]["code"]) == (4, "bad_key")


@pytest.mark.parametrize(
    "name, given, kept",
    [
        ("openai", "http://127.0.0.1:9", "http://127.0.0.1:9/v1"),
        ("anthropic", "https://api.anthropic.com/v1/messages", "https://api.anthropic.com"),
        ("ollama", "localhost:11434/api", "http://localhost:11434/v1"),
    ],
)
def test_an_address_in_the_other_form_is_put_right_and_said_so(name: str, given: str, kept: str) -> None:
    done = stead("provider", "add", name, "--url", given, "--no-key")
    assert done.code == 0 and f"The address was put right: {kept}" in done.err
    assert "put right" not in stead("provider", "add", name, "--url", kept, "--no-key").err


@pytest.mark.parametrize(
    "arguments",
    [
        ["mine"],
        ["mine", "--kind", "nosuch"],
        ["Mine!", "--kind", "openai"],
        ["script", "--kind", "openai"],
        ["openai", "--url", "ftp://x"],
        ["openai", "--url", f"https://user:{KEY}@host/v1"],
        ["openai", "--key-stdin", "--no-key"],
        ["openai", "--key-env", KEY],
        ["openai", "--key-stdin"],
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str]) -> None:
    done = stead("provider", "add", *arguments, "--json", stdin=b"")
    assert (done.code, done.json["error"]["code"]) == (2, "usage") and KEY not in done.out + done.err
    assert stead("provider", "list", "--json").json["providers"] == []


def test_without_a_key_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No key is stored" in stead("provider", "add", "openai").err
    assert "No key is stored" not in stead("provider", "add", "ollama").err
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    done = stead("provider", "add", "gemini", "--json")
    assert done.json["provider"]["key_env"] == "GEMINI_API_KEY" and KEY not in done.out + done.err


def test_removing() -> None:
    stead("provider", "add", "openai", "--key-stdin", stdin=KEY.encode())
    assert stead("provider", "remove", "openai", "--json").json == {"removed": "openai"}
    assert stead("provider", "list", "--json").json["providers"] == []
    assert stead("provider", "remove", "openai").code == 3


def test_the_list_is_a_table_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    stead("provider", "add", "ollama")
    lines = stead("provider", "list").lines
    assert lines[0] == "name\tkind\turl\tkey\torigin\tdisabled"
    assert [line.split("\t")[0::3] for line in lines[1:]] == [["anthropic", "ANTHROPIC_API_KEY"], ["ollama", "none needed"]]
