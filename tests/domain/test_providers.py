from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stead.config.secrets import Secrets
from stead.core.errors import SteadError
from stead.domain import providers
from stead.domain.providers import Meta, ModelRef, Provider
from stead.store import Feature, Store, open_store

KEY = "sk-ant-PLANTED-0123456789abcdef"
OTHER = "sk-or-PLANTED-fedcba9876543210"


@pytest.fixture
def vault(tmp_path: Path) -> Secrets:
    return Secrets(tmp_path / "house", environ={})


def save(store: Store, vault: Secrets, name: str, key: str | None = None, **fields: Any) -> Provider:
    """Save as the doors do: seal outside of the job."""
    sealed = None
    if key is not None:
        with store.view() as view:
            sealed = providers.seal_key(view, vault, name, key)
    return store.write(lambda tx: providers.save(tx, name, key=sealed, **fields))


def key_of(store: Store, vault: Secrets, name: str, environ: Mapping[str, str] | None = None) -> str | None:
    with store.view() as view:
        return providers.key_for(view, providers.get(view, name, environ), vault, environ or {})


def code(failed: pytest.ExceptionInfo[SteadError]) -> str:
    return failed.value.code


# --- records ------------------------------------------------------------------------------------------------------------------


def test_a_provider_is_saved_listed_and_removed(store: Store, vault: Secrets) -> None:
    made = save(store, vault, "anthropic", KEY, kind="anthropic", models=["claude-x", "claude-y", "claude-x"])
    assert (made.url, made.models, made.has_key, made.disabled) == (
        "https://api.anthropic.com",
        ("claude-x", "claude-y"),
        True,
        False,
    )
    with store.view() as view:
        assert providers.stored_providers(view) == [made] == providers.effective_providers(view, {})
        assert providers.get(view, "anthropic") == made
    assert key_of(store, vault, "anthropic") == KEY
    store.write(lambda tx: providers.remove(tx, "anthropic"))
    with store.view() as view:
        assert providers.stored_providers(view) == [] and view.q("SELECT * FROM secrets") == []
    with pytest.raises(SteadError) as failed:
        store.write(lambda tx: providers.remove(tx, "anthropic"))
    assert code(failed) == "not_found"


def test_a_later_save_changes_only_what_it_names(store: Store, vault: Secrets) -> None:
    first = save(store, vault, "or", KEY, kind="openrouter", models=["a/b"])
    assert save(store, vault, "or", disabled=True) == Provider(**{**fields(first), "disabled": True})
    assert save(store, vault, "or", models=[], disabled=False) == Provider(**{**fields(first), "models": ()})
    assert key_of(store, vault, "or") == KEY
    save(store, vault, "or", OTHER)
    assert key_of(store, vault, "or") == OTHER
    assert save(store, vault, "or", kind="ollama").url == "http://127.0.0.1:11434/v1"  # another kind has another address


def fields(provider: Provider) -> dict[str, Any]:
    return {name: getattr(provider, name) for name in Provider.__dataclass_fields__}


def test_one_source_of_the_key_takes_back_the_others(store: Store, vault: Secrets) -> None:
    save(store, vault, "a", KEY, kind="openai")
    made = save(store, vault, "a", key_env="MY_KEY")
    assert (made.has_key, made.key_env, made.no_key) == (False, "MY_KEY", False)
    with store.view() as view:
        assert view.q("SELECT * FROM secrets") == []
        assert [one.has_key for one in providers.effective_providers(view, {"MY_KEY": "x"})] == [True]
    assert key_of(store, vault, "a", {"MY_KEY": f" {OTHER}\n"}) == OTHER
    with pytest.raises(SteadError, match="MY_KEY") as failed:
        key_of(store, vault, "a")
    assert code(failed) == "no_key"
    made = save(store, vault, "a", no_key=True)
    assert (made.has_key, made.key_env, made.no_key) == (False, None, True)
    assert key_of(store, vault, "a", {"MY_KEY": "x"}) is None
    made = save(store, vault, "a", KEY)
    assert (made.has_key, made.key_env, made.no_key) == (True, None, False)
    with pytest.raises(SteadError):
        save(store, vault, "a", KEY, no_key=True)


def test_without_a_key_the_next_step_is_named(store: Store, vault: Secrets) -> None:
    save(store, vault, "work", kind="openai", url="https://llm.example/v1")
    with pytest.raises(SteadError) as failed:
        key_of(store, vault, "work")
    assert code(failed) == "no_key"
    assert failed.value.hint == "`stead provider add work --kind openai --url https://llm.example/v1 --key-stdin`"
    save(store, vault, "local", kind="ollama")
    assert key_of(store, vault, "local") is None  # a local server asks for none


@pytest.mark.parametrize("key", ["", " \n", "a\nb", "kéy", "a\0b"])
def test_impossible_keys(store: Store, vault: Secrets, key: str) -> None:
    with pytest.raises(SteadError) as failed:
        save(store, vault, "a", key, kind="openai")
    assert code(failed) == "usage"


@pytest.mark.parametrize("name", ["", "A", "a/b", "-a", ".a", "a b", "ä", "script", "x" * 65, "a\n"])
def test_names_that_are_none(store: Store, vault: Secrets, name: str) -> None:
    with pytest.raises(SteadError) as failed:
        save(store, vault, name, kind="openai")
    assert code(failed) == "usage"


def test_a_new_one_needs_a_known_kind(store: Store, vault: Secrets) -> None:
    for kind in (None, "azure"):
        with pytest.raises(SteadError) as failed:
            save(store, vault, "a", kind=kind)
        assert code(failed) == "usage"
    with pytest.raises(SteadError) as failed:
        save(store, vault, "a", kind="openai", key_env=KEY)
    assert code(failed) == "usage" and KEY not in str(failed.value.to_json())


def test_models_seen_keep_unknown_as_none(store: Store, vault: Secrets) -> None:
    save(store, vault, "a", kind="ollama")
    seen: dict[str, dict[str, Any]] = {
        "q:8b": {"context": 32768, "tools": True, "size": 5 << 30, "colour": "red"},
        "r": {"free": False, "reasoning": None},
    }
    store.write(lambda tx: providers.see_models(tx, "a", seen))
    wanted: dict[str, Meta] = {
        "q:8b": {"context": 32768, "tools": True, "reasoning": None, "free": None, "size": 5 << 30},
        "r": {"context": None, "tools": None, "reasoning": None, "free": False, "size": None},
    }
    with store.view() as view:
        assert providers.meta_of(view, "a") == wanted and providers.meta_of(view, "b") == {}
        before = len(view.events())
    store.write(lambda tx: providers.see_models(tx, "a", seen))
    with store.view() as view:
        assert len(view.events()) == before  # nothing new: no event
    store.write(lambda tx: providers.see_models(tx, "a", {f"m{n}": {"context": n + 1} for n in range(450)}))
    with store.view() as view:
        assert len(view.events()) == before + 3 and len(providers.meta_of(view, "a")) == 452
    store.write(lambda tx: providers.remove(tx, "a"))
    with store.view() as view:
        assert providers.meta_of(view, "a") == {}


def test_keys_in_the_environment_make_providers(store: Store, vault: Secrets) -> None:
    environ = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": "  ", "OPENROUTER_API_KEY": OTHER, "PATH": "/bin"}
    with store.view() as view:
        found = providers.effective_providers(view, environ)
        assert [(one.name, one.kind, one.origin, one.has_key) for one in found] == [
            ("anthropic", "anthropic", "environment", True),
            ("openrouter", "openrouter", "environment", True),
        ]
        assert providers.key_for(view, found[0], vault, environ) == KEY
    save(store, vault, "anthropic", no_key=True, kind="anthropic", url="http://127.0.0.1:1")
    with store.view() as view:
        assert providers.get(view, "anthropic", environ).origin == "stored"
    assert key_of(store, vault, "anthropic", environ) is None  # what is stored under the name decides
    with store.view() as view, pytest.raises(SteadError) as failed:
        providers.get(view, "gemini", environ)
    assert code(failed) == "not_found" and "anthropic, openrouter" in (failed.value.hint or "")


# --- addresses and references -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "proper"),
    [
        ("openai", None, "https://api.openai.com/v1"),
        ("openai", "https://api.openai.com", "https://api.openai.com/v1"),
        ("openai", "https://api.openai.com/v1/", "https://api.openai.com/v1"),
        ("openai", "https://API.openai.com/v1/chat/completions", "https://api.openai.com/v1"),
        ("openai", "http://localhost:8080", "http://localhost:8080/v1"),
        ("openai", "https://gate.example/team/openai", "https://gate.example/team/openai"),
        ("openai", "https://g.example/v1beta/openai", "https://g.example/v1beta/openai"),
        ("openai", "https://gate.example/llm", "https://gate.example/llm/v1"),
        ("openai", "llm.example", "https://llm.example/v1"),
        ("openai", "http://127.0.0.1:14030/c/x@chunk=7/v1", "http://127.0.0.1:14030/c/x@chunk=7/v1"),
        ("ollama", "localhost:11434", "http://localhost:11434/v1"),
        ("ollama", "http://[::1]:11434/api", "http://[::1]:11434/v1"),
        ("ollama", "192.168.1.5:11434/api/tags", "http://192.168.1.5:11434/v1"),
        ("openrouter", "https://openrouter.ai", "https://openrouter.ai/api/v1"),
        ("openrouter", "https://openrouter.ai/api", "https://openrouter.ai/api/v1"),
        ("openrouter", "https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1"),
        ("anthropic", "https://api.anthropic.com/", "https://api.anthropic.com"),
        ("anthropic", "https://api.anthropic.com/v1", "https://api.anthropic.com"),
        ("anthropic", "https://api.anthropic.com/v1/messages", "https://api.anthropic.com"),
        ("anthropic", "https://api.deepseek.com/anthropic", "https://api.deepseek.com/anthropic"),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta", "https://generativelanguage.googleapis.com"),
        ("gemini", "https://g.example/v1beta/models/x:generateContent", "https://g.example"),
        ("openai", "https://x.test/v1/chat/completions", "https://x.test/v1"),
        ("openai", "http://x.test//proxy/", "http://x.test/proxy/v1"),
        ("openai", "https://x.test/api/paas/v4", "https://x.test/api/paas/v4"),
        ("openai", "https://g.test/v1beta/openai/", "https://g.test/v1beta/openai"),
        ("openai", "localhost:1234", "http://localhost:1234/v1"),
        ("openai", "api.x.test", "https://api.x.test/v1"),
        ("openai", "[::1]:8080", "http://[::1]:8080/v1"),
        ("ollama", "http://box:11434/api", "http://box:11434/v1"),
        ("ollama", "http://box:11434/api/chat", "http://box:11434/v1"),
        ("anthropic", "https://x.test/anthropic/v1/messages", "https://x.test/anthropic"),
        ("anthropic", "https://x.test/", "https://x.test"),
        ("gemini", "https://x.test/v1beta/", "https://x.test"),
    ],
)
def test_addresses_in_the_proper_form(kind: str, given: str | None, proper: str) -> None:
    assert providers.proper_url(kind, given) == proper
    assert providers.proper_url(kind, proper) == proper


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{KEY}@api.example/v1",
        f"https://{KEY}@api.example",
        f"{KEY}@api.example",
        f"https://user:{KEY}@api.example:99999/v1",
        f"https:///user:{KEY}@api.example",
        f"https://api.example/v1?key={KEY}",
        f"https://api.example/v1#{KEY}",
        "ftp://api.example",
        "file:///etc/passwd",
        "https://",
        "https://a b/v1",
        "https://a.example:port",
        "https://[::1",
        "javascript://x",
    ],
)
def test_addresses_that_are_refused(store: Store, vault: Secrets, url: str) -> None:
    with pytest.raises(SteadError) as failed:
        save(store, vault, "a", kind="openai", url=url)
    assert code(failed) == "usage"
    assert "PLANTED" not in str(failed.value.to_json())
    with store.view() as view:
        assert view.events() == []


@pytest.mark.parametrize(
    ("text", "provider", "model"),
    [
        ("ollama/qwen3", "ollama", "qwen3"),
        ("openrouter/meta/llama-4:free", "openrouter", "meta/llama-4:free"),
        ("script/tests/a b.yaml", "script", "tests/a b.yaml"),
        ("script//abs/file.yaml", "script", "/abs/file.yaml"),
        (" a.b-c_1/x ", "a.b-c_1", "x"),
    ],
)
def test_model_references(text: str, provider: str, model: str) -> None:
    ref = providers.parse_ref(text)
    assert ref == ModelRef(provider, model) and str(ref) == text.strip()


@pytest.mark.parametrize("text", ["", "qwen3", "/x", "ollama/", "Ollama/x", "a b/x", "-a/x"])
def test_model_references_that_are_none(text: str) -> None:
    with pytest.raises(SteadError) as failed:
        providers.parse_ref(text)
    assert code(failed) == "usage"


# --- keys stay secret ---------------------------------------------------------------------------------------------------------


def forms(key: str) -> list[bytes]:
    """A key as it may lie somewhere: plain, base64 in its three phases, hexadecimal, by halves."""
    raw = key.encode()
    encoded = [base64.b64encode(b"x" * phase + raw)[4:-4] for phase in range(3)]
    return [raw, raw[: len(raw) // 2], raw[len(raw) // 2 :], raw.hex().encode(), raw[::-1], *encoded]


def test_no_key_is_in_any_row_but_a_sealed_one(store: Store, vault: Secrets) -> None:
    save(store, vault, "a", KEY, kind="anthropic", models=["m"])
    save(store, vault, "b", OTHER, kind="openrouter")
    save(store, vault, "b", disabled=True)
    with store.view() as view:
        tables = store.database.tables(view._conn)
        assert {"events", "providers", "secrets"} <= tables
        rows = {table: view.q(f"SELECT * FROM {table}") for table in tables}
        listed = providers.stored_providers(view)
    assert len(rows["secrets"]) == 2
    for key in (KEY, OTHER):
        for form in forms(key):
            for table, found in rows.items():
                assert not any(form in flat(value) for row in found for value in row), table
            assert form.decode() not in repr(listed) + repr([one.to_json() for one in listed])


def flat(value: Any) -> bytes:
    return bytes(value) if isinstance(value, (bytes, memoryview)) else str(value).encode()


def test_no_key_is_in_the_files(tmp_path: Path, features: list[Feature]) -> None:
    house = tmp_path / "house"
    vault = Secrets(house, environ={})
    with open_store(house, features) as store:
        save(store, vault, "a", KEY, kind="anthropic")
        save(store, vault, "a", OTHER)
        store.write(lambda tx: providers.remove(tx, "a"))
        save(store, vault, "a", KEY, kind="anthropic")
        assert (house / "stead.db-wal").stat().st_size > 0
        search(house)
    search(house)


def search(house: Path) -> None:
    files = [path for path in house.rglob("*") if path.is_file()]
    assert house / "stead.db" in files and house / "secret.key" in files
    for path in files:
        content = path.read_bytes()
        for key in (KEY, OTHER):
            assert not any(form in content for form in forms(key)), path
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_a_sealed_key_moved_to_another_row_does_not_open(store: Store, vault: Secrets) -> None:
    save(store, vault, "a", KEY, kind="anthropic")
    save(store, vault, "b", OTHER, kind="openrouter")
    store.write(lambda tx: swap(tx))
    for name in "ab":
        with pytest.raises(SteadError) as failed:
            key_of(store, vault, name)
        assert code(failed) == "no_key"
    with store.view() as view:
        assert providers.unreadable(view, vault) == ["providers:a", "providers:b"]
    store.write(lambda tx: swap(tx))
    assert (key_of(store, vault, "a"), key_of(store, vault, "b")) == (KEY, OTHER)


def swap(tx: Any) -> None:
    rows = {row[0]: row[1:] for row in tx.q("SELECT owner, nonce, sealed FROM secrets")}
    for owner, other in (("providers:a", "providers:b"), ("providers:b", "providers:a")):
        tx.q("UPDATE secrets SET nonce=?, sealed=? WHERE owner=?", *rows[other], owner)


@pytest.mark.parametrize("column", ["nonce", "sealed", "key_version"])
def test_a_changed_sealed_key_does_not_open(store: Store, vault: Secrets, column: str) -> None:
    save(store, vault, "a", KEY, kind="anthropic")

    def spoil(tx: Any) -> None:
        value = tx.one(f"SELECT {column} FROM secrets")[0]
        tx.q(f"UPDATE secrets SET {column}=?", value[::-1] if isinstance(value, str) else bytes([value[0] ^ 1]) + bytes(value[1:]))

    store.write(spoil)
    with pytest.raises(SteadError) as failed:
        key_of(store, vault, "a")
    assert code(failed) == "no_key"


def test_the_same_key_is_sealed_differently_each_time(store: Store, vault: Secrets) -> None:
    for name in "ab":
        save(store, vault, name, KEY, kind="openai")
    with store.view() as view:
        one, two = view.q("SELECT nonce, sealed FROM secrets")
    assert bytes(one[0]) != bytes(two[0]) and bytes(one[1]) != bytes(two[1])


def test_keys_survive_a_rebuild_and_a_new_opening(store: Store, vault: Secrets, tmp_path: Path) -> None:
    save(store, vault, "a", KEY, kind="anthropic")
    store.write(lambda tx: providers.remove(tx, "a"))
    save(store, vault, "a", OTHER, kind="anthropic")
    store.rebuild()
    assert key_of(store, Secrets(tmp_path / "house", environ={}), "a") == OTHER


def test_another_secret_says_what_it_cannot_read(store: Store, vault: Secrets, tmp_path: Path) -> None:
    save(store, vault, "a", KEY, kind="anthropic")
    other = Secrets(tmp_path / "house", environ={"STEAD_SECRET": "a quite different secret of somebody"})
    with pytest.raises(SteadError, match=r"providers:a .*STEAD_SECRET") as failed:
        key_of(store, other, "a")
    assert code(failed) == "no_key"
    save(store, other, "b", OTHER, kind="openrouter")  # new keys may be given at once
    with store.view() as view:
        assert providers.unreadable(view, other) == ["providers:a"] and providers.unreadable(view, vault) == ["providers:b"]
        masked = providers.known_secret_values(view, other, {})
    assert OTHER in masked and "a quite different secret of somebody" in masked and KEY not in masked


def test_b005_an_empty_or_missing_secret_is_not_replaced_while_keys_are_sealed(
    store: Store, vault: Secrets, tmp_path: Path
) -> None:
    save(store, vault, "a", KEY, kind="anthropic")
    path = tmp_path / "house" / "secret.key"
    kept = path.read_bytes()
    for content in (b"", b"\0" * 44, b"short\n", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        fresh = Secrets(tmp_path / "house", environ={})
        for attempt in (lambda: key_of(store, fresh, "a"), lambda: save(store, fresh, "b", OTHER, kind="openai")):  # noqa: B023
            with pytest.raises(SteadError, match=r"secret\.key") as failed:
                attempt()
            assert code(failed) == "store_damaged"
        assert (path.read_bytes() if path.exists() else None) == content
        with store.view() as view:
            assert (
                providers.known_secret_values(view, fresh, {"OPENAI_API_KEY": OTHER})[0] == OTHER
            )  # masking goes on with the rest
            assert [one.has_key for one in providers.stored_providers(view)] == [True]  # and so does listing
        path.write_bytes(kept)
    assert key_of(store, Secrets(tmp_path / "house", environ={}), "a") == KEY


def test_reseal_with_another_secret(store: Store, vault: Secrets, tmp_path: Path) -> None:
    save(store, vault, "a", KEY, kind="anthropic")
    save(store, vault, "b", OTHER, kind="openrouter")
    other = Secrets(tmp_path, environ={"STEAD_SECRET": "the next one"})
    assert store.write(lambda tx: providers.reseal(tx, vault, other)) == 2
    assert (key_of(store, other, "a"), key_of(store, other, "b")) == (KEY, OTHER)
    with store.view() as view:
        assert providers.unreadable(view, vault) == ["providers:a", "providers:b"]
    with pytest.raises(SteadError):
        store.write(lambda tx: providers.reseal(tx, vault, other))
    assert key_of(store, other, "a") == KEY


def test_every_known_secret_is_named_for_masking(store: Store, vault: Secrets) -> None:
    save(store, vault, "a", KEY, kind="anthropic")
    save(store, vault, "b", key_env="MY_LLM_TOKEN", kind="openai")
    environ = {"MY_LLM_TOKEN": "tok-1234567890", "GEMINI_API_KEY": "gem-12345", "OPENAI_API_KEY": "short", "HOME": "/home/ada"}
    with store.view() as view:
        found = providers.known_secret_values(view, vault, environ)
        assert set(found) == {KEY, "tok-1234567890", "gem-12345", *vault.values()}
        assert found == sorted(found, key=len, reverse=True)
        assert {"MY_LLM_TOKEN", "ANTHROPIC_API_KEY", "STEAD_SECRET"} <= set(providers.secret_variables(view))
