"""Editing text of any encoding: what is outside the edit keeps its bytes."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stead.agent.textfile import NotText, TextFile, Unwritable, parse
from stead.domain.hunks import count

SAMPLES = {
    "latin-1": "# Größe und Maß\nvalue = 1\nname = 'Müller'\n",
    "cp1252": "// l’utilisateur préféré — “oui”\nvalue = 1\nname = 'naïve café'\n",
    "gbk": "# 配置文件说明\nvalue = 1\nname = '测试数据'\n",
    "shift_jis": "# 設定ファイルの説明です\nvalue = 1\nname = 'テスト'\n",
    "euc_kr": "# 설정 파일 설명\nvalue = 1\nname = '시험'\n",
    "big5": "# 設定檔案說明\nvalue = 1\nname = '測試'\n",
    "cp1251": "# файл настроек\nvalue = 1\nname = 'проба'\n",
    "utf-16-le": "# Größe 設定\nvalue = 1\nname = '🎉'\n",
    "utf-16-be": "# Größe 設定\nvalue = 1\nname = '🎉'\n",
    "utf-8": "# Größe 設定\nvalue = 1\nname = '🎉'\n",
}


def edited(raw: bytes, old: str, new: str) -> bytes:
    file = parse(raw)
    places = file.find(old)
    assert len(places) == 1, places
    return file.replaced(places, old, new)


@pytest.mark.parametrize("encoding", SAMPLES)
def test_b065_other_bytes_stay_in_every_encoding(encoding: str) -> None:
    text = SAMPLES[encoding]
    raw = text.encode(encoding)
    assert edited(raw, "value = 1", "value = 23") == text.replace("value = 1", "value = 23").encode(encoding)


@pytest.mark.parametrize("encoding", SAMPLES)
def test_b065_the_model_sees_the_real_characters(encoding: str) -> None:
    assert parse(SAMPLES[encoding].encode(encoding)).text == SAMPLES[encoding]


@pytest.mark.parametrize("encoding", SAMPLES)
def test_b065_what_is_added_is_written_in_the_encoding_of_the_file(encoding: str) -> None:
    text = SAMPLES[encoding]
    added = text.split("\n")[0][2:4]  # characters that the encoding certainly has
    assert edited(text.encode(encoding), "value = 1", f"value = '{added}'") == text.replace("= 1", f"= '{added}'").encode(encoding)


@pytest.mark.parametrize(
    ("bom", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_b066_a_bom_is_kept_by_edits_and_rewriting_and_never_shown(bom: bytes, encoding: str) -> None:
    text = "erste Zeile\nvalue = ü\n"
    raw = bom + text.encode(encoding)
    file = parse(raw)
    assert file.text == text and file.bom == bom
    assert edited(raw, "value", "wert") == bom + text.replace("value", "wert").encode(encoding)
    assert edited(raw, "erste", "Erste") == bom + text.replace("erste", "Erste").encode(encoding)
    assert file.rewritten("neu\n") == bom + "neu\n".encode(encoding)
    assert file.rewritten("\ufeffneu\n") == bom + "neu\n".encode(encoding)
    assert file.rewritten(text + "mehr\n") == raw + "mehr\n".encode(encoding)
    assert count(raw, file.rewritten(text + "mehr\n")) == (1, 0)  # no phantom first line


@pytest.mark.parametrize("odd", [b"\xff", b"\xe9", b"\xc3", b"\xed\xa0\x80"])
def test_b065_an_invalid_byte_in_utf8_stays(odd: bytes) -> None:
    raw = "Grüße 設定\n".encode() + b"bad: " + odd + b" end\nvalue = 1\n"
    assert parse(raw).encoding == "utf-8"
    assert edited(raw, "value = 1", "value = 2") == raw.replace(b"value = 1", b"value = 2")
    # also inside the replaced text, when the model copies the sign that it saw
    shown = parse(raw).text.split("\n")[1]
    assert edited(raw, shown, shown.replace("end", "fin")) == raw.replace(b"end", b"fin")
    assert edited(raw, shown + "\nvalue = 1", "x\n" + shown + "\nvalue = 2") == raw.replace(b"bad", b"x\nbad").replace(
        b"= 1", b"= 2"
    )
    assert edited(raw, shown, "gone") == raw.replace(b"bad: " + odd + b" end", b"gone")


def test_b065_an_unclear_number_of_odd_bytes_is_refused() -> None:
    raw = "ü\n".encode() * 5 + b"a \xff b \xfe c\n"
    with pytest.raises(Unwritable):
        edited(raw, "a \ufffd b \ufffd c", "c \ufffd b")


def test_b065_a_character_that_the_encoding_lacks_is_refused() -> None:
    with pytest.raises(Unwritable, match=r"cp1252 .*U\+2192"):
        edited("Müßiggang über alles\nvalue\n".encode("cp1252"), "value", "→")


def test_an_odd_byte_in_ascii_is_kept_too() -> None:
    raw = b"abc\nx = '\x81\x8d'\nvalue\n"
    assert edited(raw, "value", "v") == b"abc\nx = '\x81\x8d'\nv\n"


def test_half_a_character_at_the_end_of_utf16_stays() -> None:
    raw = codecs.BOM_UTF16_LE + "value\n".encode("utf-16-le") + b"x"
    assert edited(raw, "value", "v") == codecs.BOM_UTF16_LE + "v\n".encode("utf-16-le") + b"x"
    lone = codecs.BOM_UTF16_LE + "value\n".encode("utf-16-le") + b"\x3d\xd8"
    assert edited(lone, "value", "v") == codecs.BOM_UTF16_LE + "v\n".encode("utf-16-le") + b"\x3d\xd8"


@pytest.mark.parametrize(
    "raw", [b"a\0b", b"\x7fELF\x02\x01\0\0\0", b"text\n" * 50 + b"\0", bytes(range(256)), b"\xff\xfe\0\0\xff\xff\xff\xff"]
)
def test_binary_data_is_not_text(raw: bytes) -> None:
    with pytest.raises(NotText):
        parse(raw)


# ---- line ends ----


def test_b068_only_the_edited_line_changes_in_a_file_of_mixed_ends() -> None:
    raw = b"one\r\ntwo\nthree\rfour\r\nfive\r\n"
    assert parse(raw).text == "one\ntwo\nthree\nfour\nfive\n"
    for word in (b"one", b"two", b"three", b"four", b"five"):
        assert edited(raw, word.decode(), "new") == raw.replace(word, b"new")
    # a region over all the odd ends, of which one line changes
    assert edited(raw, "one\ntwo\nthree\nfour", "one\ntwo\n3\nfour") == raw.replace(b"three", b"3")
    assert edited(raw, "one\ntwo\nthree\nfour", "one\n2\nthree\nfour") == raw.replace(b"two", b"2")
    assert edited(raw, "two\nthree", "two\nextra\nthree") == raw.replace(b"two\n", b"two\nextra\n")
    assert edited(raw, "four\nfive", "four\nextra\nfive") == raw.replace(b"four\r\n", b"four\r\nextra\r\n")


def test_b068_rewriting_a_mixed_file_changes_only_other_lines() -> None:
    raw = b"one\r\ntwo\nthree\rfour\r\n"
    assert parse(raw).rewritten("one\ntwo\nTHREE\nfour\nfive\n") == b"one\r\ntwo\nTHREE\rfour\r\nfive\r\n"


def test_b069_a_block_seen_from_a_crlf_file_matches_and_its_replacement_takes_crlf() -> None:
    raw = b"a\r\nb\r\nc\r\nd\r\n"
    assert edited(raw, "a\nb\nc\n", "x\ny\nz\nw\n") == b"x\r\ny\r\nz\r\nw\r\nd\r\n"
    assert edited(raw, "b", "b1\nb2") == b"a\r\nb1\r\nb2\r\nc\r\nd\r\n"
    assert edited(raw, "a\r\nb", "x\r\ny") == b"x\r\ny\r\nc\r\nd\r\n"
    assert parse(raw).rewritten("n\nm") == b"n\r\nm"


def test_crlf_given_for_an_lf_file() -> None:
    assert edited(b"a\nb\n", "a\r\nb", "x\r\ny") == b"x\ny\n"  # believed to be CRLF: the file decides
    assert edited(b"a\nb\n", "a", "x\r\ny") == b"x\r\ny\nb\n"  # asked for


def test_a_file_with_carriage_returns_only() -> None:
    assert parse(b"a\rb\r").text == "a\nb\n"
    assert edited(b"a\rb\r", "a\nb", "a\nnew\nb") == b"a\rnew\rb\r"


def test_other_separators_are_no_line_ends() -> None:
    raw = "a\u2028b\x0bc\x0cd\x85e\x1c\nf\n".encode()
    assert parse(raw).text.count("\n") == 2
    assert edited(raw, "f", "g") == raw.replace(b"f", b"g")


def test_every_occurrence_keeps_the_end_of_its_own_line() -> None:
    raw = b"x = 1\r\nx = 1\nx = 1\r"
    file = parse(raw)
    assert file.replaced(file.find("x = 1"), "x = 1", "y") == b"y\r\ny\ny\r"
    assert file.find("") == [] and file.find("zzz") == []
    assert file.replaced(file.find("\n"), "\n", ";") == b"x = 1;x = 1;x = 1;"


def test_no_newline_at_the_end_stays_so() -> None:
    assert edited(b"a\r\nb", "b", "c\nd") == b"a\r\nc\r\nd"
    assert parse(b"a\nb").rewritten("a\nc") == b"a\nc"
    assert parse(b"").rewritten("a\n") == b"a\n"


# ---- properties ----

_BYTES = st.one_of(
    st.binary(max_size=80),
    st.lists(
        st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xff", b"\xe9", "ü".encode(), "設".encode(), b"\x83\x5c", b" "])
    ).map(b"".join),
    st.tuples(
        st.sampled_from([codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE]),
        st.text(st.characters(codec="utf-8"), max_size=40),
    ).map(
        lambda pair: (
            pair[0] + pair[1].encode({codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le"}.get(pair[0], "utf-16-be"))
        )
    ),
)


def _file(raw: bytes) -> TextFile | None:
    try:
        return parse(raw)
    except NotText:
        return None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(raw=_BYTES, data=st.data())
def test_bytes_outside_any_edit_stay(raw: bytes, data: st.DataObject) -> None:
    file = _file(raw)
    if file is None or not file.text:
        return
    assert file.bom + file._encode(file.chars) + file.tail == raw
    begin = data.draw(st.integers(0, len(file.text) - 1))
    old = file.text[begin : data.draw(st.integers(begin + 1, len(file.text)))]
    new = data.draw(st.text("ab \n", max_size=12))
    first, last = file._place(begin), file._place(begin + len(old))
    before = len(file.bom) + len(file._encode(file.chars[:first]))
    after = len(raw) - len(file.bom) - len(file._encode(file.chars[:last]))
    changed = file.replaced([begin], old, new)
    assert changed[:before] == raw[:before]
    assert changed[len(changed) - after :] == raw[len(raw) - after :] and len(changed) >= before + after
    assert file.replaced([begin], old, old) == raw


@settings(max_examples=200, deadline=None, derandomize=True)
@given(raw=_BYTES)
def test_rewriting_with_what_was_shown_changes_nothing(raw: bytes) -> None:
    file = _file(raw)
    if file is not None:
        assert file.rewritten(file.text) + file.tail == raw
