"""Manifests."""

from __future__ import annotations

import json
import sys

import pytest

from fasteraa.data import load
from fasteraa.errors import DataError

ROWS = [
    ("one/a.png", "dog", "train"),
    ("one/b.png", "cat", "train"),
    ("two/c d.png", "dog", "test"),
    ("ü.png", "cat", "val"),
]


@pytest.fixture
def pictures(tmp_path, paint):
    for seed, (path, _, _) in enumerate(ROWS):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        paint(seed).save(tmp_path / path)
    return tmp_path


def write_csv(file, rows, header="path,label,split", encoding="utf-8"):
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding=encoding)
    return file


def write_jsonl(file, rows):
    names = ("path", "label", "split")
    file.write_text("\n".join(json.dumps(dict(zip(names, row, strict=False))) for row in rows) + "\n\n")
    return file


def write_parquet(file, rows):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    names = ("path", "label", "split")
    parquet.write_table(pyarrow.table({name: [row[i] for row in rows] for i, name in enumerate(names)}), file)
    return file


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "bom"])
def test_all_kinds_read_the_same(pictures, paint, array_of, kind):
    file = pictures / f"list.{'csv' if kind == 'bom' else kind}"
    if kind == "tsv":
        file.write_text("path\tlabel\tsplit\n" + "".join("\t".join(row) + "\n" for row in ROWS))
    elif kind in ("csv", "bom"):
        write_csv(file, ROWS, encoding="utf-8-sig" if kind == "bom" else "utf-8")
    else:
        {"jsonl": write_jsonl, "parquet": write_parquet}[kind](file, ROWS)
    train, val, test = (load(file, split=split) for split in ("train", "val", "test"))
    assert train.classes == val.classes == test.classes == ("cat", "dog")
    assert [s.labels.tolist() for s in (train, val, test)] == [[1, 0], [0], [1]]
    assert (train.images[1].numpy() == array_of(paint(1))).all()
    assert (test.images[0].numpy() == array_of(paint(2))).all()
    assert train.name == "list"


def test_classes_are_those_of_all_splits(pictures):
    file = write_csv(pictures / "m.csv", [ROWS[0], (ROWS[1][0], "ant", "test")])
    assert load(file, split="test").classes == ("ant", "dog")
    with pytest.raises(DataError, match="none for 'ant' in split 'train'"):
        load(file)


def test_without_a_split_column_all_is_train(pictures):
    file = write_csv(pictures / "m.csv", [row[:2] for row in ROWS], header="path,label")
    assert len(load(file)) == 4
    with pytest.raises(DataError, match=r"no split 'test'.*split column"):
        load(file, split="test")


@pytest.mark.parametrize("labels", [[10, 9, 10, 9], ["10", "9", "10", "9"]])
def test_whole_numbers_are_labels(pictures, labels):
    file = write_jsonl(pictures / "m.jsonl", [(row[0], label) for row, label in zip(ROWS, labels, strict=True)])
    loaded = load(file)
    assert loaded.classes == ("9", "10")
    assert loaded.labels.tolist() == [1, 0, 1, 0]


def test_absolute_paths_and_other_column_names(pictures, tmp_path):
    rows = [(str(pictures / row[0]), row[1]) for row in ROWS]
    (tmp_path / "far").mkdir()
    assert len(load(write_csv(tmp_path / "far" / "m.csv", rows, header="file_name,class"))) == 4


def test_a_missing_file_counts_as_broken(pictures):
    file = write_csv(pictures / "m.csv", [*ROWS[:2], ("gone.png", "cat", "train")])
    loaded = load(file)
    assert [(item.path, item.reason) for item in loaded.broken] == [(str(pictures / "gone.png"), "no such file")]
    assert len(loaded) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,klass\na.png,x\n", "column 'label' or 'class' is missing at .*m.csv row 2; found: path, klass"),
        ("file,label\na.png,x\n", "column 'path' or 'file_name' or 'filename' is missing"),
        ("path,label\n", "has no rows"),
        ("", "has no rows"),
        ("path,label\na.png,\n", r"label must be a whole number or non-empty text, got '' at .*m.csv row 2"),
        ("path,label\na.png\n", "got None at .*row 2"),
        ("path,label\n,x\n", "path must be non-empty text, got ''"),
        ("path,label,split\na.png,x,trian\n", r"unknown split 'trian' at .*row 2; did you mean 'train'\?"),
        ("path,label,split\na.png,x,train\nb.png,x,\n", "unknown split '' at .*row 3"),
    ],
)
def test_a_damaged_csv_names_the_row(tmp_path, text, message):
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "m.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"path": "a.png", "label": 1}\n{"path": ', "row 2 is not valid JSON"),
        ("[1, 2]", "row 1: got list"),
        ('{"path": "a.png", "label": 1.5}', "got 1.5 at"),
        ('{"path": "a.png", "label": true}', "got True at"),
        ('{"path": "a.png", "label": null}', "got None at"),
        ('{"path": "a.png", "label": -1}', "not be negative .*got -1"),
        ('{"path": 7, "label": 1}', "path must be non-empty text, got 7"),
    ],
)
def test_a_damaged_jsonl_names_the_row(tmp_path, text, message):
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "m.jsonl")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    for kind in ("csv", "jsonl"):
        (tmp_path / f"m.{kind}").write_bytes(b"path,label\n\xff\xfe\x00,x\n")
        with pytest.raises(DataError, match="in UTF-8"):
            load(tmp_path / f"m.{kind}")


def test_a_damaged_parquet_is_refused(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "m.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="is not a Parquet file"):
        load(tmp_path / "m.parquet")

    def talkative(file):
        raise pyarrow.ArrowInvalid("x" * 5000)

    monkeypatch.setattr(parquet, "read_schema", talkative)
    with pytest.raises(DataError, match="is not a Parquet file") as told:
        load(tmp_path / "m.parquet")
    monkeypatch.undo()
    assert len(str(told.value).replace(str(tmp_path), "")) < 300
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "n.parquet")
    with pytest.raises(DataError, match=r"'path' and 'label' are missing in .*found: x"):
        load(tmp_path / "n.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "m.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"fasteraa\[parquet\]"):
        load(tmp_path / "m.parquet")


def test_semicolons_as_excel_writes_them(tmp_path, paint):
    for name in "ab":
        paint().save(tmp_path / f"{name}.png")
    (tmp_path / "m.csv").write_text("path;label\na.png;x, y\nb.png;z\n")
    assert load(tmp_path / "m.csv").classes == ("x, y", "z")
