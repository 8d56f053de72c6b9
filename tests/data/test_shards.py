"""WebDataset shards."""

from __future__ import annotations

import io
import tarfile

import pytest

from fasteraa.data import check, load
from fasteraa.data.shards import expand_braces
from fasteraa.errors import DataError


def write_shard(file, members):
    """members: (name, bytes or picture)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, content in members:
            if not isinstance(content, bytes):
                buffer = io.BytesIO()
                content.save(buffer, "PNG")
                content = buffer.getvalue()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def shards(tmp_path, paint):
    """Three shards of four images each, labels 0 and 10 and 2 by turns."""
    for s in range(3):
        members = []
        for i in range(4):
            n = 4 * s + i
            members += [
                (f"x/{n:04d}.png", paint(n)),
                (f"x/{n:04d}.cls", b"%d\n" % [0, 10, 2][n % 3]),
                (f"x/{n:04d}.json", b"{}"),
            ]
        write_shard(tmp_path / "s" / f"part-{s:03d}.tar", members)
    return tmp_path / "s"


@pytest.mark.parametrize("pattern", ["part-{000..002}.tar", "wds:part-{000,001,002}.tar", "part-*.tar", "wds:"])
def test_every_way_to_name_shards_reads_the_same(shards, paint, array_of, pattern):
    prefix, _, rest = pattern.rpartition(":")
    loaded = load(f"{prefix}{':' if prefix else ''}{shards}/{rest}")
    assert loaded.classes == ("0", "2", "10")
    assert loaded.labels.tolist() == [0, 2, 1] * 4
    for n in range(12):
        assert (loaded.images[n].numpy() == array_of(paint(n))).all()


def test_one_shard_is_a_path(shards):
    assert len(load(shards / "part-001.tar")) == 4
    assert len(load(str(shards / "part-001.tar"))) == 4


def test_braces():
    assert list(expand_braces("a{08..11}b{x,y}")) == [f"a{n}b{w}" for n in ("08", "09", "10", "11") for w in "xy"]
    assert list(expand_braces("plain{}")) == ["plain{}"]


def test_a_folder_of_shards_has_splits_by_name(tmp_path, paint):
    for name, labels in (("train-0", "ab"), ("val-0", "b"), ("test/0", "a")):
        members = [m for i, w in enumerate(labels) for m in ((f"{i}.png", paint(i)), (f"{i}.cls", w.encode()))]
        write_shard(tmp_path / "s" / f"{name}.tar", members)
    source = f"wds:{tmp_path}/s"
    assert [load(source, split=split).labels.tolist() for split in ("train", "val", "test")] == [[0, 1], [1], [0]]
    assert check(source).splits[1].per_class == (("a", 0), ("b", 1))


def test_a_base_name_ends_at_its_first_dot(tmp_path, paint):
    write_shard(tmp_path / "s.tar", [("a.b/0.input.png", paint(0)), ("a.b/0.cls", b"x"), ("a.b/.png", paint(1))])
    assert len(load(tmp_path / "s.tar")) == 1


def test_broken_images_and_other_members(tmp_path, paint):
    members = [("a.png", paint(0)), ("a.cls", b"cat"), ("b.jpg", b"junk"), ("b.cls", b"cat"), ("b.txt", b"x")]
    write_shard(tmp_path / "s.tar", members)
    loaded = load(tmp_path / "s.tar")
    assert [item.path for item in loaded.broken] == [f"{tmp_path}/s.tar/b.jpg"]
    assert check(tmp_path / "s.tar").ignored == 1


def test_damaged_shards_are_refused(tmp_path, paint):
    write_shard(tmp_path / "unlabelled.tar", [("a.png", paint(0)), ("a.cls", b"x"), ("b.png", paint(1))])
    with pytest.raises(DataError, match=r"'b' in .*unlabelled.tar has none"):
        load(tmp_path / "unlabelled.tar")
    write_shard(tmp_path / "none.tar", [("a.txt", b"x")])
    with pytest.raises(DataError, match=r"no images with a .cls member in 1 shards"):
        load(tmp_path / "none.tar")
    write_shard(tmp_path / "blank.tar", [("a.png", paint(0)), ("a.cls", b" ")])
    with pytest.raises(DataError, match=r"label must be .*blank.tar/a.cls"):
        load(tmp_path / "blank.tar")
    write_shard(tmp_path / "whole.tar", [("a.png", paint(0, 64, 64)), ("a.cls", b"x")])
    (tmp_path / "cut.tar").write_bytes((tmp_path / "whole.tar").read_bytes()[:1000])
    with pytest.raises(DataError, match=r"cut.tar is not a readable, uncompressed tar"):
        load(tmp_path / "cut.tar")
    with pytest.raises(DataError, match=r"no such shard: .*s-001.tar \(from"):
        load(f"{tmp_path}/s-{{001..002}}.tar")
    with pytest.raises(DataError, match=r"no such shard: .*q-"):
        load(f"{tmp_path}/q-*.tar")
