"""Files are whole or not there: an error, a second thread or a full disk leaves what was before."""

import errno
import os
import threading
from pathlib import Path

import pytest

from fasteraa.errors import ConfigError, RunError
from fasteraa.runtime.files import as_file_name, explain_os_error, replacing, write_atomic


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text("old")
    return path


def alone(file):
    """Nothing partial is left beside it."""
    return list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("content", ["new, größer", b"\x00new"])
def test_all_of_it_is_written(file, content):
    write_atomic(file, content)
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert alone(file)


def test_folders_on_the_way_are_made(tmp_path):
    write_atomic(tmp_path / "race" / "runs" / "a.json", "{}")
    assert (tmp_path / "race" / "runs" / "a.json").read_text() == "{}"


@pytest.mark.parametrize("error", [ValueError("halfway"), KeyboardInterrupt()])
def test_an_error_halfway_leaves_the_old_file(file, error):
    with pytest.raises(type(error)), replacing(file) as partial:  # noqa: PT012
        partial.write_text("half")
        raise error
    assert file.read_text() == "old"
    assert alone(file)


def test_a_file_that_was_not_there_is_not_there_after_an_error(tmp_path):
    with pytest.raises(ValueError, match="halfway"), replacing(tmp_path / "new.json") as partial:  # noqa: PT012
        partial.write_text("half")
        raise ValueError("halfway")
    assert list(tmp_path.iterdir()) == []


def test_links_and_permissions_stay(file):
    file.chmod(0o600)
    link = file.with_name("link.json")
    link.symlink_to(file.name)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    dangling = file.with_name("dangling")
    dangling.symlink_to("there")
    write_atomic(dangling, "made")
    assert file.with_name("there").read_text() == "made"


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "."])
def test_what_is_no_file_is_not_replaced(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = {"folder": tmp_path / "f", "pipe": tmp_path / "p", "device": Path("/dev/null"), ".": Path()}[kind]
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    before = path.stat().st_mode
    with pytest.raises(RunError, match=r"could not be written: it is a .*, not a regular file"):
        write_atomic(path, "new")
    assert path.stat().st_mode == before


def test_until_it_is_whole_readers_see_the_old_file(file):
    with replacing(file) as partial:
        partial.write_text("new")
        assert file.read_text() == "old"
        assert partial.parent == file.parent  # else it could not be renamed in one step
        assert partial.suffix == file.suffix  # libraries choose a format by it
    assert file.read_text() == "new"


def test_it_is_on_disk_before_it_takes_the_place(file, monkeypatch):
    """After a power cut there is the old file or the new one, not an empty one."""
    order, sync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: order.append("fsync") or sync(number))
    monkeypatch.setattr(Path, "replace", lambda self, to: order.append("replace") or replace(self, to))
    write_atomic(file, "new")
    assert order == ["fsync", "replace"]


def test_threads_do_not_write_into_each_others_files(file):
    contents, barrier = [f"{letter}" * 200_000 for letter in "abcd"], threading.Barrier(4, timeout=20)

    def write(content):
        for _ in range(5):
            barrier.wait()
            write_atomic(file, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_text() in contents
    assert alone(file)


def test_two_threads_at_once_have_a_partial_file_each(file):
    partials, barrier = [], threading.Barrier(2, timeout=20)

    def write(content):
        with replacing(file) as partial:
            partials.append(partial)
            barrier.wait()
            partial.write_text(content)
            barrier.wait()

    threads = [threading.Thread(target=write, args=(content,)) for content in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(partials)) == 2
    assert file.read_text() in ("one", "two")


@pytest.mark.parametrize("kind", [RunError, ConfigError])
def test_a_full_disk_names_the_file(file, monkeypatch, kind):
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(kind, match=r"policy\.json' could not be written: No space left on device"):
        write_atomic(file, "new", kind)
    assert file.read_text() == "old"
    assert alone(file)


def test_a_path_through_a_file_is_explained(file):
    with pytest.raises(RunError, match=r"a\.json' could not be written: a part of its path is a file, not a folder"):
        write_atomic(file / "a.json", "{}")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_explained(file):
    file.parent.chmod(0o500)
    try:
        with pytest.raises(RunError, match="could not be written: Permission denied"):
            write_atomic(file, "new")
    finally:
        file.parent.chmod(0o700)
    assert file.read_text() == "old"


def test_only_errors_of_the_system_are_explained(tmp_path):
    with pytest.raises(RunError, match=r"'a' could not be written: gone"), explain_os_error(Path("a")):
        raise OSError("gone")
    with pytest.raises(ValueError, match="mine"), explain_os_error(Path("a")):
        raise ValueError("mine")


def test_a_long_name_has_a_partial_name_that_fits(tmp_path):
    path = tmp_path / ("x" * 250 + ".json")
    write_atomic(path, "{}")
    assert path.read_text() == "{}"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("randaugment(2,14)", "randaugment-2-14"),
        ("general-or-trivial", "general-or-trivial"),
        ("../a b/c", "..-a-b-c"),
        ("größe", "größe"),
        ("x" * 100, "x" * 60),
    ],
)
def test_labels_as_names_of_files(text, name):
    assert as_file_name(text) == name
    assert "/" not in as_file_name(text)
