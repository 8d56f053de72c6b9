"""Map-style data sets in Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fasteraa.data import load
from fasteraa.errors import DataError


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_pictures_tensors_and_arrays_give_the_same(paint):
    pictures = [paint(i, 6, 5) for i in range(4)]
    arrays = [np.asarray(picture) for picture in pictures]
    tensors = [torch.from_numpy(array.copy()).permute(2, 0, 1) for array in arrays]
    sets = [load(Items([(x, i % 2) for i, x in enumerate(kind)])) for kind in (pictures, arrays, tensors)]
    assert len({s.fingerprint for s in sets}) == 1
    assert (sets[0].images.numpy() == np.stack(arrays).transpose(0, 3, 1, 2)).all()
    assert sets[0].labels.tolist() == [0, 1, 0, 1]
    assert sets[0].name == "Items"


def test_grey_tensors_and_tensor_labels():
    images = torch.arange(32, dtype=torch.uint8).reshape(2, 1, 4, 4)
    loaded = load(TensorDataset(images, torch.tensor([3, 5])))
    assert torch.equal(loaded.images[:, 1], images[:, 0])
    assert (loaded.classes, loaded.labels.tolist()) == (("3", "5"), [0, 1])


def test_a_subset_of_a_folder_keeps_its_class_names_and_reads_only_what_is_needed(grow, monkeypatch):
    from torchvision.datasets import ImageFolder

    folder = ImageFolder(grow({"a": 2, "b": 2, "c": 30}))
    reads = []
    monkeypatch.setattr(folder, "loader", lambda path, real=folder.loader: reads.append(path) or real(path))
    loaded = load(Subset(folder, [0, 3, 2]), size=8)
    assert (loaded.classes, loaded.labels.tolist()) == (("a", "b", "c"), [0, 1, 1])
    assert len(reads) == 3


def test_a_target_transform_is_honoured(grow):
    from torchvision.datasets import ImageFolder

    folder = ImageFolder(grow({"a": 1, "b": 2}), target_transform=lambda label: 1 - label)
    assert load(folder).labels.tolist() == [1, 0, 0]


def test_labels_that_contradict_their_list_are_noticed(paint):
    items = Items([(paint(i), i) for i in range(3)])
    items.targets = [0, 1, 1]
    with pytest.raises(DataError, match=r"Items\[2\] yields label 2 but its list of labels says 1"):
        load(items)


def test_float_pixels_are_refused_with_advice():
    with pytest.raises(DataError, match=r"float32 pixels; give uint8 or Pillow images \(leave out ToTensor"):
        load(TensorDataset(torch.zeros(4, 3, 4, 4), torch.tensor([0, 1, 0, 1])))


def test_a_broken_item_is_listed(paint):
    class Brittle(Items):
        targets = (0, 0, 1, 1)

        def __getitem__(self, i):
            if i == 1:
                raise OSError("lost\nin the net")
            return self.items[i]

    loaded = load(Brittle([(paint(i), i // 2) for i in range(4)]))
    assert [(item.path, item.reason) for item in loaded.broken] == [("Brittle[1]", "OSError: lost")]
    assert loaded.labels.tolist() == [0, 1, 1]


def test_items_are_read_in_the_calling_thread(paint):
    import threading

    class Shy(Items):
        def __getitem__(self, i):
            assert threading.current_thread() is threading.main_thread()
            return self.items[i]

    assert len(load(Shy([(paint(i), 0) for i in range(80)]), broken_budget=0)) == 80


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Stream(), "map-style"),
        (42, "map-style .*got int"),
        (Items([torch.zeros(3, 4, 4)]), r"must yield \(image, label\) or \(image, mask\), got Tensor from Items\[0\]"),
        (Items([("a string", 0)] * 3), "str is neither a Pillow image"),
        (Items([(np.zeros((4, 4, 7), np.uint8), 0)] * 3), r"shape \(4, 4, 7\) is no image"),
        (Items([(np.zeros((4, 4), np.uint8), 0.5)]), "label must be a whole number"),
        (Items([]), "no images in split 'train'"),
    ],
)
def test_what_is_no_data_set_is_refused(source, message):
    with pytest.raises(DataError, match=message):
        load(source)
