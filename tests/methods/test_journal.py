"""The trials of fast-aa: what is cut off, changed or no trial at all is forgotten, with what follows it."""

import json

import pytest

from fasteraa.errors import RunError
from fasteraa.methods.fast_aa import Journal, PolicyTrial
from fasteraa.runtime.files import sealed

TRIALS = [PolicyTrial((1, 2), 0.25, 1.5), PolicyTrial((0, 9), 0.5, 0.25), PolicyTrial((2, 0), 0.125, 2.0)]
SIZES = (3, 10)


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "fold" / "1.jsonl", SIZES)
    for trial in TRIALS:
        journal.append(trial)
    return journal


def test_it_reads_what_it_wrote(journal):
    before = journal.file.read_bytes()
    assert journal.read() == TRIALS
    assert journal.file.read_bytes() == before
    assert Journal(None, SIZES).read() == []
    assert Journal(journal.file.with_name("none"), SIZES).read() == []


def row(code=(1, 1), error=0.5, seconds=1.0):
    return json.dumps(sealed({"trial": 1, "code": list(code), "error": error, "seconds": seconds})).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[" * 5000,
        b"1e400",
        b"9" * 5000,
        b"[[1, 1], 0.5, 1.0]",
        b'{"code": [1, 1], "error": 0.5, "seconds": 1.0}',
        row().replace(b"0.5", b"0.4"),
        row()[:-9],
        row(code=(1, 10)),
        row(code=(1, 1, 1)),
        row(error="x"),
        json.dumps(sealed({"trial": 1, "code": [1, 1]})).encode(),
        row(code=(1, -1)),
    ],
    ids=range(13),
)
def test_what_is_no_trial_is_forgotten(journal, line):
    first, *_, last = journal.file.read_bytes().splitlines(keepends=True)
    journal.file.write_bytes(first + line + b"\n" + last)
    assert journal.read() == TRIALS[:1]
    assert journal.file.read_bytes() == first


def test_a_line_that_is_lost_or_doubled_is_noticed(journal):
    """What a trial tried depends on its number."""
    a, b, c = journal.file.read_bytes().splitlines(keepends=True)
    for lines, kept in (((b, c), 0), ((a, c), 1), ((a, a, b, c), 1), ((a, c, b), 1), ((a, b), 2)):
        journal.file.write_bytes(b"".join(lines))
        assert journal.read() == TRIALS[:kept]
        for trial in TRIALS[kept:]:
            journal.append(trial)
        assert journal.file.read_bytes() == a + b + c


def test_every_flipped_bit_is_noticed(journal):
    whole = journal.file.read_bytes()
    for place in range(len(whole)):
        journal.file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = journal.read()
        assert found == TRIALS[: len(found)]


def test_a_folder_in_its_place(journal):
    journal.file.unlink()
    journal.file.mkdir()
    with pytest.raises(RunError, match="it is a folder"):
        journal.read()
