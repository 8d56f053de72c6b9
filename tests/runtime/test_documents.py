"""The one reader of JSON and TOML, and names for terminals."""

from __future__ import annotations

import json
import os
import socket

import pytest

from fasteraa.errors import ConfigError, DataError, PolicyError, RunError
from fasteraa.runtime import documents
from fasteraa.runtime.documents import cut, parse_json, printable, quoted, read_bytes, read_json, read_toml


def nested(depth):
    return "[" * depth + "]" * depth


def test_plain_documents_are_read(tmp_path):
    (tmp_path / "a.json").write_text('\ufeff{"a": [1, 2.5, "é", null, true]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5, "é", None, True]}
    (tmp_path / "a.toml").write_text('[search]\nops = ["rotate"]\n')
    assert read_toml(tmp_path / "a.toml") == {"search": {"ops": ["rotate"]}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", r"is not valid JSON: Expecting property name.*line 1 column 2"),
        (b"", r"is not valid JSON: Expecting value"),
        (b'{"a": "\xe9"}', r"is not text in UTF-8 \(byte 7\)"),
        (nested(100_000).encode(), "nests deeper than 100 levels"),
        (nested(101).encode(), "nests deeper than 100 levels"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nests deeper than 100 levels"),
        (b"[" + b"9" * 5000 + b"]", "a number of more than 300 digits"),
        (b"[" + b"9" * 301 + b"]", "a number of more than 300 digits"),
        (b'{"a": -1' + b"0" * 300 + b"}", "a number of more than 300 digits"),
    ],
)
def test_a_json_file_beyond_the_limits_is_named(tmp_path, content, said):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(PolicyError, match=said) as error:
        read_json(tmp_path / "a.json", PolicyError)
    assert str(tmp_path / "a.json") in str(error.value)
    assert len(str(error.value)) < 500


def test_documents_at_the_limits_are_read(tmp_path):
    (tmp_path / "a.json").write_text(nested(100))
    assert json.dumps(read_json(tmp_path / "a.json")) == nested(100)
    assert parse_json("9" * 300) == int("9" * 300)
    assert parse_json(json.dumps([[1] * 200_000, {"a": {}}]))[1] == {"a": {}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a = ", "is not valid TOML: Invalid value"),
        ("a = " + "[" * 10_000, "nests deeper than 100 levels"),
        ("a." * 101 + "b = 1", "nests deeper than 100 levels"),
        ("a." * 200_000 + "b = 1", "more than 1000 dots"),  # would take minutes
        ("a = " + "1" * 5000, "a number of more than 300 digits"),
        ("a = 0x" + "f" * 5000, "a number of more than 300 digits"),
        ("# " + "x" * (1 << 20), "the limit is 1 MiB"),
    ],
)
def test_a_toml_file_beyond_the_limits_is_named(tmp_path, content, said):
    (tmp_path / "a.toml").write_text(content)
    with pytest.raises(ConfigError, match=said) as error:
        read_toml(tmp_path / "a.toml")
    assert str(tmp_path / "a.toml") in str(error.value)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", '{"a": [NaN]}'])
def test_numbers_that_are_none_can_be_refused(number):
    parse_json(number)
    with pytest.raises(RunError, match=r"line 7 holds (nan|-?inf), which is not a number"):
        parse_json(number, where="line 7", nan=False)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.json' could not be read: No such file"):
        read_json(tmp_path / "nothing.json", DataError)
    with pytest.raises(RunError, match="it is a folder, not a regular file"):
        read_json(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(RunError, match="it is a pipe, not a regular file"):
        read_json(tmp_path / "link")
    with pytest.raises(RunError, match="it is a device, not a regular file"):
        read_json("/dev/zero")
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind(str(tmp_path / "s"))
        with pytest.raises(RunError, match="it is a socket, not a regular file"):
            read_json(tmp_path / "s")
    with pytest.raises(RunError, match="null byte"):
        read_json("a\0b")


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(documents, "check_regular", lambda path, most: None)
    with pytest.raises(ValueError, match="it is a pipe"):
        read_bytes(tmp_path / "pipe", 100)


def test_large_files_are_refused_unread(tmp_path):
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(1 << 40)  # of holes: it takes no room
    with pytest.raises(RunError, match="it has 1,048,576 MiB, the limit is 64 MiB"):
        read_json(tmp_path / "large.json")
    with pytest.raises(ValueError, match="the limit"):
        read_bytes("/proc/self/maps", 10)  # the system gives it no size
    (tmp_path / "ten").write_bytes(bytes(10))
    assert read_bytes(tmp_path / "ten", 10) == bytes(10)
    with pytest.raises(ValueError, match="the limit"):
        read_bytes(tmp_path / "ten", 9)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, été, 日本, \U0001f600, a b", "plain, été, 日本, \U0001f600, a b"),
        ("\x1b[31mred\x07\x7f\x9b", r"\x1b[31mred\x07\x7f\x9b"),
        ("two\nlines\r\tand\u2028", r"two\nlines\r\tand\u2028"),
        ("caf\udce9", r"caf\xe9"),
        ("\ud800\udfff", r"\ud800\udfff"),
        ("right\u202eto left", r"right\u202eto left"),
        ("no\u00a0break \U0001f468\u200d\U0001f469", "no\u00a0break \U0001f468\u200d\U0001f469"),
    ],
)
def test_what_a_terminal_would_obey_is_made_visible(text, shown):
    assert printable(text) == shown
    printable(text).encode()


def test_every_character_can_be_shown():
    shown = printable("".join(map(chr, range(0x110000))))
    shown.encode()
    assert not any(char in shown for char in "\x00\x07\x08\x1b\x7f\x85\x9b\n\r\u2028")
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_quotes_are_short():
    assert quoted("a\x1b") == r"'a\x1b'"
    assert len(cut("x" * 10**6)) == len(quoted("x" * 10**6)) == len(quoted(["x"] * 10**5)) == 200
    assert len(cut("\x1b" * 200)) == 200
    assert quoted(10**5000) == "(int too large to be shown)"
