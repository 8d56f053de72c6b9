"""`fasteraa apply`: the same bytes whoever makes them, continued after any end, nothing lost, nothing mixed."""

import io
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
import torch
from PIL import Image

from fasteraa.data import load
from fasteraa.errors import ConfigError, DataError, RunError, Stopped
from fasteraa.offline import job as offline_job
from fasteraa.offline import processes as offline_processes
from fasteraa.offline import run as offline_run
from fasteraa.offline import shard as offline_shard
from fasteraa.offline.job import ApplyJob, ShardTask, chance, key_of
from fasteraa.offline.shard import apply_shard
from fasteraa.offline.writers import header
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.apply import apply_draw
from fasteraa.policy.draw import plan_of

from .conftest import content, manifest, members


def test_the_same_bytes_from_one_process_and_from_four(make, tmp_path):
    for format in ("shards", "folder"):
        make(f"one-{format}", format=format)
        make(f"four-{format}", format=format, workers=4)
        one, four = content(tmp_path / f"one-{format}"), content(tmp_path / f"four-{format}")
        assert one == four
        assert not any(name.endswith(".part") for name in one)
    assert len(members(tmp_path / "one-shards")) == 2 * 2 * 20


@pytest.mark.gpu
def test_the_same_bytes_from_a_gpu(make, tmp_path):
    make("cpu", copies=4)
    make("gpu", copies=4, device="cuda", workers=2)
    assert content(tmp_path / "cpu") == content(tmp_path / "gpu")


def test_pixels_are_those_of_the_policy(make, photos, tmp_path):
    """Each copy is what the policy makes of its image by the chance of (seed, key, copy), and of nothing else."""
    make(seed=3, encoding="png")
    policy, made = Policy.named("trivialaugment-wide"), members(tmp_path / "out")
    plan = plan_of(policy)
    files = sorted(photos.rglob("*.*g"))
    assert len(files) == 20
    for place, copy in itertools.product(range(20), range(2)):
        key = key_of(str(files[place]), place)
        image = torch.from_numpy(np.asarray(Image.open(files[place]).convert("RGB")).copy()).permute(2, 0, 1)[None]
        draw = plan.decode(torch.from_numpy(chance(3, key, copy, plan.width))[None])
        expected = apply_draw(policy, plan, image, draw)[0].permute(1, 2, 0).numpy()
        assert (np.asarray(Image.open(io.BytesIO(made[f"{key}-{copy}.png"]))) == expected).all()
        assert made[f"{key}-{copy}.cls"] == str(place // 10).encode()


def test_a_schedule_is_refused(make):
    subs = (SubPolicy((), 1.0, during=(0.0, 0.5)), SubPolicy(((Choice("invert", 1.0, None),),), 1.0, during=(0.5, 1.0)))
    with pytest.raises(ConfigError, match="belong to no epoch, so they cannot follow the schedule of 'grows'"):
        make(policy=Policy(subs, "grows"))


def test_chance_is_even_and_belongs_to_its_copy():
    numbers = np.stack([chance(0, "a", copy, 40) for copy in range(400)])
    assert 0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    others = [chance(1, "a", 0, 4), chance(0, "b", 0, 4), chance(0, "a", 1, 4)]
    assert all((chance(0, "a", 0, 4) != other).all() for other in others)
    assert (chance(0, "a", 0, 4) == chance(0, "a", 0, 40)[:4]).all()


def test_batches_do_not_matter(make, tmp_path, monkeypatch):
    make("large")
    monkeypatch.setitem(offline_shard._BATCH_BYTES, "cpu", 1)  # one image at a time
    make("small")
    assert content(tmp_path / "large") == content(tmp_path / "small")


class Arrays:
    """The photos as a data set of arrays, or of Pillow images."""

    def __init__(self, folder, as_is):
        self.files, self.as_is = sorted(folder.rglob("*.*g")), as_is
        self.targets = [place % 2 for place in range(len(self.files))]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, place):
        image = Image.open(self.files[place]).convert("RGB")
        return (image if self.as_is else np.asarray(image)), self.targets[place]


@pytest.mark.parametrize("size", [None, 8])
def test_arrays_are_what_pillow_images_are(make, photos, tmp_path, size):
    """Without a Pillow image in between, which costs more than a policy on few pixels."""
    policy = Policy((SubPolicy(((Choice("sample_pairing", 1.0, 0.5),),)),))
    for name, as_is in (("arrays", False), ("pictures", True)):
        make(name, source=Arrays(photos, as_is), policy=policy if size else "trivialaugment-wide", size=size)
    assert members(tmp_path / "arrays") == members(tmp_path / "pictures")


def test_what_is_written_can_be_read(make, photos, tmp_path):
    make("folder", format="folder", copies=3)
    data = load(tmp_path / "folder")
    assert data.classes == ("cat", "golden retriever")
    assert data.counts() == (30, 30)
    assert {path.suffix for path in (tmp_path / "folder" / "train" / "cat").iterdir()} == {".png", ".jpg"}
    make("shards", copies=3)
    data = load(f"wds:{tmp_path / 'shards'}")
    assert data.classes == ("cat", "golden retriever")
    assert data.counts() == (30, 30)
    assert manifest(tmp_path / "shards")["made"] == {"samples": 60, "tasks": 10, "broken": 0}


def test_shards_are_mixed(make, tmp_path):
    make(copies=1, shard_size=10)
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as tar:
        labels = {tar.extractfile(entry).read() for entry in tar if entry.name.endswith(".cls")}
    assert labels == {b"0", b"1"}


def test_the_order_is_drawn_once(make, monkeypatch):
    """Not for each shard: a million images have hundreds, and each would sort all of them."""
    counted, real = [], offline_job.stratify.shuffled
    monkeypatch.setattr(offline_job.stratify, "shuffled", lambda *given: (counted.append(given), real(*given))[1])
    offline_job._order.cache_clear()
    make(seed=11)
    assert counted == [(20, 11, 0)]


def test_a_header_is_that_of_a_plain_file():
    for name, size in (("a.png", 0), ("cat-0000012-2.cls", 3), ("x" * 90 + ".mask.png", 123456789)):
        found = tarfile.TarInfo.frombuf(header(name, size), "ascii", "strict")  # checks the sum
        assert (found.name, found.size, found.isreg(), found.mode, found.mtime) == (name, size, True, 0o644, 0)
        assert len(header(name, size)) == tarfile.BLOCKSIZE


def test_masks_follow(tmp_path, make):
    """Geometry moves a mask with its image, and brings in 255, which does not count."""
    rng = np.random.default_rng(0)
    root = tmp_path / "masked"
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    for i in range(6):
        mask = rng.integers(0, 3, (10, 12), dtype=np.uint8)
        Image.fromarray(mask).save(root / "masks" / f"{i}.png")
        Image.fromarray(np.repeat(mask[..., None] * 80 + 40, 3, 2).astype(np.uint8)).save(root / "images" / f"{i}.png")
    (root / "classes.txt").write_text("sky\nroad\ncar\n")
    policy = Policy((SubPolicy(((Choice("translate_x", 1.0, 0.9),),)),), fill=(0, 0, 0))
    for format, source in (("folder", tmp_path / "folder"), ("shards", f"wds:{tmp_path / 'shards'}")):
        make(format, source=root, policy=policy, format=format)
        data = load(source)
        assert data.task == "segmentation"
        assert data.classes == ("sky", "road", "car")
        assert len(data) == 12
        expected = torch.where(data.images[:, 0] == 0, 255, (data.images[:, 0].int() - 40) // 80)
        assert (data.masks == expected).all()
        assert (data.masks == 255).any()


def test_partners_come_from_the_whole_source(make, tmp_path):
    """However shards are cut."""
    policy = Policy((SubPolicy(((Choice("sample_pairing", 1.0, 1.0),),)),))
    make("a", policy=policy, size=8, shard_size=2)
    make("b", policy=policy, size=8, shard_size=40)
    assert members(tmp_path / "a") == members(tmp_path / "b")
    make("none", policy="none", size=8)
    assert members(tmp_path / "a") != members(tmp_path / "none")


def test_a_task_is_data(make, photos, tmp_path):
    """Another engine can run it: pickled, in another process, twice."""
    import pickle

    make()
    job = ApplyJob(
        source=str(photos), data_root=None, split="train", policy=Policy.named("trivialaugment-wide").to_json(),
        out=str(tmp_path / "other"), copies=2, shard_size=8,
    )  # fmt: skip
    for _ in range(2):
        apply_shard(pickle.loads(pickle.dumps(ShardTask(job, 1))))
        name = "train-000001.tar"
        assert (tmp_path / "other" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


# --- ends of all kinds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["shards", "folder"])
def test_an_end_at_any_write_and_the_same_call_again(make, tmp_path, monkeypatch, format):
    make("whole", format=format)
    whole = content(tmp_path / "whole")

    class Killed(BaseException):
        pass

    count = itertools.count()
    replace, real = iter(range(1, 100, 7)), os.replace
    stop = [next(replace)]

    def dying(self, target):
        if next(count) == stop[0]:
            raise Killed
        return real(self, target)

    monkeypatch.setattr("pathlib.Path.replace", dying)
    monkeypatch.setattr("pathlib.Path.unlink", lambda self, missing_ok=False: None)  # nothing is tidied up by a kill
    ends = 0
    for _ in range(40):
        try:
            make(format=format)
            break
        except Killed:
            ends += 1
            stop[0] = next(replace, -1)
    assert ends >= 2
    found = content(tmp_path / "out")
    assert {name: data for name, data in found.items() if not name.endswith(".part")} == whole
    assert not any(name.endswith(".part") for name in found)


def test_nothing_is_made_twice(make, tmp_path, monkeypatch):
    make()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    (tmp_path / "out" / "train-000002.tar").unlink()
    made = []
    real = offline_processes.apply_shard
    monkeypatch.setattr(offline_processes, "apply_shard", lambda task: (made.append(task.number), real(task)))
    make()
    assert made == [2]
    kept = {path: path.stat().st_mtime_ns for path in before if path.name != "train-000002.tar"}
    assert kept.items() <= before.items()


@pytest.mark.parametrize("format", ["shards", "folder"])
def test_what_was_damaged_is_made_again(make, tmp_path, format):
    """A bit of a file or of a record, a file cut short, one that is gone: finished is what is whole."""
    make(format=format)
    whole = content(tmp_path / "out")
    names = [name for name in whole if name.startswith(("train", ".tasks"))]
    for number in (0, len(names) // 2, len(names) - 1):  # a record, and files or shards
        path, good = tmp_path / "out" / names[number], whole[names[number]]
        place = 31 * (number + 1) % len(good)
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        (tmp_path / "out" / names[number - 1]).unlink()
        make(format=format)
        assert content(tmp_path / "out") == whole
        path.write_bytes(good[:place])
        make(format=format)
        assert content(tmp_path / "out") == whole


def test_a_damaged_manifest_is_named(make, tmp_path):
    make()
    file = tmp_path / "out" / "apply.json"
    for text in (file.read_text().replace('"seed": 0', '"seed": 1'), "{", "[]", ""):
        file.write_text(text)
        with pytest.raises(RunError, match=r"apply.json' is damaged, so what the folder holds is not known"):
            make(seed=1)
        assert file.read_text() == text


def killed_at(make, folder, count):
    """A call in another process, killed (but not its workers, who notice) when so many tasks are finished."""
    process = multiprocessing.get_context("fork").Process(target=make, kwargs={"workers": 2, "shard_size": 2})
    process.start()
    while len(list(folder.glob(".tasks/*.json"))) < count and process.is_alive():
        time.sleep(0.001)
    process.kill()
    process.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_with_signal_9(make, tmp_path):
    make("whole", shard_size=2)
    for count in (0, 1, 3, 8, 15):
        killed_at(make, tmp_path / "out", count)
    assert not (tmp_path / "out" / "classes.txt").exists()  # it was never finished
    make(shard_size=2)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.alone
def test_the_command_killed_with_signal_9_at_ten_points(photos, tmp_path):
    flags = [
        "--policy",
        "autoaugment-cifar10",
        "--copies",
        "100",
        "--shard-size",
        "50",
        "--workers",
        "2",
        "--device",
        "cpu",
    ]

    def command(out):
        return [sys.executable, "-m", "fasteraa", "apply", str(photos), *flags, "--out", str(tmp_path / out)]

    subprocess.run(command("whole"), check=True, stdout=subprocess.DEVNULL)
    for count in range(0, 20, 2):
        process = subprocess.Popen(command("out"), stdout=subprocess.DEVNULL)
        while len(list((tmp_path / "out").glob("*.tar"))) < count and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.wait()
    subprocess.run(command("out"), check=True, stdout=subprocess.DEVNULL)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_what_is_held_does_not_grow_with_the_files(make, monkeypatch):
    """A folder of a million images has a digest of each, which the records on disk keep."""
    closed, real = [], offline_run._close
    monkeypatch.setattr(offline_run, "_close", lambda *given: (closed.append(given[-1]), real(*given))[1])
    made = make(format="folder")
    (records,) = closed
    assert sum(record["samples"] for record in records.values()) == made.samples == 40
    assert all(record["files"] == {} for record in records.values())


def test_a_worker_that_is_killed_is_named(make, monkeypatch):
    monkeypatch.setattr(offline_processes, "apply_shard", lambda task: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RunError, match=r"ended from outside.*finished shards are kept"):
        make(workers=2)


def test_ctrl_c_says_how_to_continue(make, monkeypatch):
    def stop(task):
        raise KeyboardInterrupt(signal.SIGINT)

    monkeypatch.setattr(offline_processes, "apply_shard", stop)
    with pytest.raises(Stopped, match="the same command again"):
        make()


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": "none"}, "another policy"),
        ({"seed": 1}, "another seed"),
        ({"copies": 3}, "another number of copies"),
        ({"format": "folder"}, "another format"),
        ({"size": 8}, "another size"),
        ({"source": None}, "another source"),
    ],
)
def test_other_settings_are_refused(make, tmp_path, settings, said):
    make()
    before = content(tmp_path / "out")
    with pytest.raises(RunError, match=rf"was begun with {said} .*choose another folder"):
        make(**settings)
    assert content(tmp_path / "out") == before


def test_another_image_is_another_source(make, photos):
    make()
    (photos / "cat" / "new.png").write_bytes((photos / "cat" / "cat.0.png").read_bytes())
    with pytest.raises(RunError, match=r"out' was begun with another number of images \(\d+, not \d+\)"):
        make()


@pytest.mark.parametrize("package", ["pillow", "torch"])
def test_parts_by_another_version_are_refused_and_what_is_whole_keeps_its_own(make, tmp_path, monkeypatch, package):
    make()
    before, version = manifest(tmp_path / "out")["versions"], offline_run.metadata.version
    monkeypatch.setattr(offline_run.metadata, "version", lambda name: "999" if name == package else version(name))
    make()  # nothing is left to make
    assert manifest(tmp_path / "out")["versions"] == before
    next((tmp_path / "out").glob("*.tar")).unlink()
    with pytest.raises(RunError, match=rf"'.*out' was begun with {package} .*, here is 999, .*: choose another folder"):
        make()


def test_a_folder_with_something_else_is_refused(make, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine-000000.tar").write_bytes(b"")
    with pytest.raises(RunError, match=r"holds 'mine-000000.tar', which fasteraa apply did not write"):
        make()
    assert os.listdir(tmp_path / "out") == ["mine-000000.tar"]


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"copies": 0}, ConfigError, "copies must be at least 1, got 0"),
        ({"format": "zip"}, ConfigError, "unknown format 'zip'; choices: shards, folder"),
        ({"encoding": "pngs"}, ConfigError, "unknown encoding 'pngs'; did you mean 'png'"),
        ({"workers": 0}, ConfigError, "workers must be at least 1, got 0"),
        ({"split": "test"}, DataError, "has no split 'test'"),
        ({"engine": "rai"}, ConfigError, "unknown engine 'rai': did you mean 'ray'"),
        ({"address": "auto"}, ConfigError, "--address is for --engine ray"),
        ({"engine": "ray", "device": "cuda"}, ConfigError, "on a cluster cores apply the policy"),
        ({"source": None, "format": "folder"}, DataError, "cannot be a folder if it is called 'T-shirt/top'"),
    ],
)
def test_bad_settings(make, settings, error, said):
    with pytest.raises(error, match=said):
        make(**settings)


def test_what_lies_among_the_images_is_refused(make):
    with pytest.raises(DataError, match="would be taken for a class"):
        make("photos/augmented")


def test_a_full_disk_names_the_file_and_loses_nothing(make, tmp_path, monkeypatch):
    make("whole")
    real = offline_shard.Augment.__call__

    def full(self, batch):
        if (tmp_path / "out" / "train-000001.tar").exists():
            raise OSError(28, "No space left on device")
        return real(self, batch)

    monkeypatch.setattr(offline_shard.Augment, "__call__", full)
    with pytest.raises(RunError, match=r"train-000002.tar' could not be written: No space left on device"):
        make()
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar*")) == ["train-000000.tar", "train-000001.tar"]
    monkeypatch.undo()
    make()
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_broken_images_are_counted(make, photos, tmp_path):
    good = (photos / "cat" / "cat.0.png").read_bytes()
    (photos / "cat" / "cat.0.png").write_bytes(b"no image")
    made = make(workers=2)
    assert made.samples == 38
    assert [each.path for each in made.broken] == [str(photos / "cat" / "cat.0.png")]
    assert manifest(tmp_path / "out")["made"]["broken"] == 1
    assert "not an image" in (tmp_path / "out" / "broken.jsonl").read_text()
    (photos / "cat" / "cat.2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"2 of 20 images of photos are broken, the budget allows 1"):
        make("more")
    for name in ("cat.0.png", "cat.2.png"):
        (photos / "cat" / name).write_bytes(good)
    assert make("again").samples == 40


def test_mended_images_are_not_left_out(make, photos, tmp_path):
    """What ended with too many broken images forgets the shards that lack them."""
    good = {name: (photos / "cat" / name).read_bytes() for name in ("cat.1.jpg", "cat.2.png")}
    for name in good:
        (photos / "cat" / name).write_bytes(b"no image")
    with pytest.raises(DataError, match="the budget allows 1"):
        make()
    for name, data in good.items():
        (photos / "cat" / name).write_bytes(data)
    records = list((tmp_path / "out" / ".tasks").iterdir())
    assert all('"broken": []' in record.read_text() for record in records)
