from __future__ import annotations

import pytest

from stead.core.errors import CODES, SteadError


def test_every_code_has_one_sentence() -> None:
    for code, meaning in CODES.items():
        assert code == code.lower() and " " not in code
        assert meaning.endswith(".") and len(meaning) < 120


def test_an_error_is_code_message_and_details() -> None:
    assert SteadError("not_found", "No such session.").to_json() == {"code": "not_found", "message": "No such session."}
    assert SteadError("no_key", "No key.", hint="stead provider add").to_json() == {
        "code": "no_key",
        "message": "No key.",
        "details": {"hint": "stead provider add"},
    }
    error = SteadError("conflict", "Changed.", details={"path": "a"}, hint="again")
    assert error.to_json()["details"] == {"path": "a", "hint": "again"}
    assert str(error) == "Changed."


def test_an_unlisted_code_is_a_fault() -> None:
    with pytest.raises(AssertionError):
        SteadError("surprise", "Oh.")
