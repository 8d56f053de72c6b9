"""WebDataset shards."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from fasteraa.data import check, load
from fasteraa.data.shards import expand_braces
from fasteraa.errors import DataError


def write_shard(file, members, kind=tarfile.DEFAULT_FORMAT):
    """members: (name, bytes or picture)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w", format=kind) as tar:
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
    with pytest.raises(DataError, match=r"no images with a .cls member or a mask in 1 shards"):
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


@pytest.fixture
def forty(tmp_path, paint):
    """One shard of forty images, and where its headers lie."""
    members = [m for i in range(40) for m in ((f"{i:02d}.png", paint(i)), (f"{i:02d}.cls", b"%d" % (i % 2)))]
    write_shard(tmp_path / "s.tar", members)
    with tarfile.open(tmp_path / "s.tar") as tar:
        return tmp_path / "s.tar", {entry.name: entry.offset for entry in tar}


def flip(file, place, bit=0):
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["20.png", "20.cls", "39.png", "39.cls"])
def test_a_damaged_header_costs_one_image_and_is_named(forty, name):
    """tarfile takes it for the end of the archive."""
    file, headers = forty
    flip(file, headers[name] + 130)
    loaded = load(file, size=8)
    assert len(loaded) == 39
    assert loaded.labels.tolist() == [i % 2 for i in range(40) if i != int(name[:2])]
    ((path, reason),) = [(item.path, item.reason) for item in loaded.broken]
    assert path == str(file)
    assert reason.startswith(f"the tar header at byte {headers[name]} is damaged")
    report = check(file)
    assert (report.total, len(report.broken), report.ok) == (39, 1, False)
    assert f"  {path}: {reason}" in report.lines()
    with pytest.raises(DataError, match=r"1 of 39 images of s\.tar are broken, the budget allows 0"):
        load(file, size=8, broken_budget=0)


def test_every_bit_of_a_header_counts(forty):
    file, headers = forty
    whole = file.read_bytes()
    for place in range(0, tarfile.BLOCKSIZE, 7):
        flip(file, headers["20.png"] + place, place % 8)
        loaded = load(file, size=8)
        assert (len(loaded), len(loaded.broken)) == (39, 1), place
        file.write_bytes(whole)


def test_several_damaged_headers_are_beyond_the_budget(forty):
    file, headers = forty
    for name in ("10.png", "20.png", "30.cls"):
        flip(file, headers[name] + 3)
    with pytest.raises(DataError, match=r"3 of 37 images .* the budget allows 1"):
        load(file)
    assert any("fasteraa search will refuse them: 3 of 37" in line for line in check(file).lines())
    assert len(load(file, broken_budget=0.1)) == 37


def test_neighbouring_headers_may_be_damaged_and_count_each(forty):
    file, headers = forty
    flip(file, headers["20.cls"])
    flip(file, headers["21.png"])
    with pytest.raises(DataError, match=r"2 of 38 .*s\.tar/21 \(its image or its label is lost\)"):
        load(file)


def test_a_header_of_zeros_is_not_the_end(forty):
    file, headers = forty
    content = bytearray(file.read_bytes())
    content[headers["20.png"] : headers["20.png"] + 512] = bytes(512)
    file.write_bytes(content)
    loaded = load(file)
    assert (len(loaded), len(loaded.broken)) == (39, 1)


def test_an_archive_that_ends_too_early_is_named(forty):
    file, headers = forty
    whole = file.read_bytes()
    file.write_bytes(whole[: headers["20.png"]])  # between two members, where tarfile notices nothing
    loaded = load(file)
    assert len(loaded) == 20
    assert [item.reason for item in loaded.broken] == [
        "it ends without the mark of an archive's end: members may be lost"
    ]
    file.write_bytes(whole[: headers["20.png"] + 600])
    with pytest.raises(DataError, match=r"s\.tar is not a readable, uncompressed tar file: unexpected end of data"):
        load(file)


@pytest.mark.parametrize("length", [2048, 4096, 8192, None])
def test_zeros_in_the_place_of_members_are_named(forty, length):
    """A lost page of a disk, or a download whose end has not come: to tarfile the end of the archive."""
    file, headers = forty
    content = file.read_bytes()
    start = headers["20.png"]
    end = len(content) if length is None else start + length
    file.write_bytes(content[:start] + bytes(end - start) + content[end:])
    loaded = load(file, broken_budget=0.5)
    assert len(loaded) == (20 if length is None else 40 - length // 2048)
    ((path, reason),) = [(item.path, item.reason) for item in loaded.broken]
    assert path == str(file)
    assert reason.startswith(f"at byte {start} are {end - start:,} zeros, which is not how an archive ends")


@pytest.mark.parametrize("record", [1, 20, 128])
def test_archives_end_with_records_of_many_sizes(forty, record):
    file, headers = forty
    bare = file.read_bytes()[: headers["39.cls"] + 1024] + bytes(1024)
    filled = bare + bytes(-len(bare) % (record * 512))
    assert (record == 1) == (filled == bare)
    for content in (filled, filled * 2) if record != 128 else (filled,):
        file.write_bytes(content)
        assert load(file).broken == ()


def test_archives_in_a_row_are_all_read(forty, tmp_path, paint):
    file, _ = forty
    write_shard(tmp_path / "t.tar", [("x.png", paint(90)), ("x.cls", b"1")])
    file.write_bytes(file.read_bytes() + (tmp_path / "t.tar").read_bytes())
    loaded = load(file)
    assert (len(loaded), loaded.broken) == (41, ())


def test_a_long_name_in_a_damaged_header(tmp_path, paint):
    members = [m for i in range(9) for m in ((f"{'x' * 120}{i}.png", paint(i)), (f"{'x' * 120}{i}.cls", b"1"))]
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        write_shard(tmp_path / "s.tar", members, kind)
        whole = (tmp_path / "s.tar").read_bytes()
        with tarfile.open(tmp_path / "s.tar") as tar:
            entry = tar.getmembers()[8]
        for place in (entry.offset, entry.offset_data - 512):  # of the name, and of what has it
            flip(tmp_path / "s.tar", place)
            loaded = load(tmp_path / "s.tar")
            assert (len(loaded), len(loaded.broken)) == (8, 1)
            (tmp_path / "s.tar").write_bytes(whole)


def test_a_size_below_zero_does_not_lead_back_for_ever(forty):
    file, headers = forty
    content = bytearray(file.read_bytes())
    header = bytearray(content[headers["20.png"] : headers["20.png"] + 512])
    header[124:136] = b"\xff" * 9 + b"\xff\xf0\x00"  # -4096, in base 256
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[headers["20.png"] : headers["20.png"] + 512] = header
    file.write_bytes(content)
    loaded = load(file)
    assert (len(loaded), len(loaded.broken)) == (39, 1)


def test_labels_and_images_of_an_insane_size(tmp_path, paint, monkeypatch):
    monkeypatch.setattr("fasteraa.data.shards.LARGEST_FILE", 10_000)
    members = [("a.png", paint(0)), ("a.cls", b"x"), ("b.png", bytes(10_001)), ("b.cls", b"x")]
    write_shard(tmp_path / "s.tar", members)
    assert [item.reason for item in load(tmp_path / "s.tar").broken] == ["it has 0 MiB, the limit is 0 MiB"]
    write_shard(tmp_path / "t.tar", [("a.png", paint(0)), ("a.cls", b"x" * 100_000)])
    with pytest.raises(DataError, match="a label must have at most 1000 characters") as error:
        load(tmp_path / "t.tar")
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "pattern",
    ["{000..999999999}.tar", "{0..9}" * 200 + ".tar", "{1.." + "9" * 5000 + "}.tar", "{a,b}{0..99999999}.tar"],
)
def test_more_names_than_there_can_be_shards(tmp_path, paint, pattern):
    write_shard(tmp_path / "000.tar", [("a.png", paint(0)), ("a.cls", b"x")])
    with pytest.raises(DataError, match=r"no such shard|at most 10 braces") as error:
        load(f"{tmp_path}/{pattern}")
    assert len(str(error.value)) < 600


def test_a_pipe_among_shards_is_not_waited_for(shards):
    os.mkfifo(shards / "pipe.tar")
    assert len(load(f"wds:{shards}")) == 12
    with pytest.raises(DataError, match="no such shard"):
        load(f"{shards}/{{pipe,part-000}}.tar")
