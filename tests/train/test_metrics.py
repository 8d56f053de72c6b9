"""Measuring: the loss says who guesses better, not who is surer of everything, and batches do not matter."""

import math

import pytest
import torch

from fasteraa.train.metrics import effective_images, measured


def test_the_loss_does_not_depend_on_how_sure_a_network_is_in_general():
    """Logits times anything are as good; without a sign of knowing anything it is that of guessing."""
    logits = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    labels = (logits + torch.randn(500, 4, generator=torch.Generator().manual_seed(1))).argmax(1)
    found = measured([(logits, labels)]).loss
    assert found < torch.nn.functional.cross_entropy(logits, labels) - 0.005
    assert measured([(4 * logits, labels)]).loss == pytest.approx(found, abs=1e-6)
    assert measured([(logits / 3, labels)]).loss == pytest.approx(found, abs=0.002)
    assert measured([(-logits, labels)]).loss > found + 0.3
    assert measured([(torch.zeros(500, 4), labels)]).loss == pytest.approx(math.log(4), abs=1e-5)


def test_batches_of_any_size_measure_the_same():
    logits, labels = torch.randn(100, 8, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 8
    whole = measured([(logits, labels)])
    split = measured(zip(logits.split(33), labels.split(33), strict=True))
    assert split[:2] == whole[:2]
    assert split.loss == pytest.approx(whole.loss, rel=1e-6)


def test_every_class_counts_alike_in_a_balanced_error():
    """Ninety of one class, ten of another: who always guesses the first has 10% errors and is no better than chance."""
    labels = torch.cat([torch.zeros(90), torch.ones(10)]).long()
    logits = torch.zeros(100, 3)  # the third class has no images, and does not count
    logits[:, 0] = 4.0
    found = measured(zip(logits.split(32), labels.split(32), strict=True))
    assert found.error == pytest.approx(10)
    assert found.balanced_error == pytest.approx(50)
    assert found.balanced_loss > found.loss + 0.3
    even = measured([(torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3)])
    assert even.balanced_error == pytest.approx(even.error)
    assert even.balanced_loss == pytest.approx(even.loss, rel=1e-5)


def test_few_of_a_class_tell_little_about_a_mean_over_classes():
    assert effective_images(torch.arange(60) % 3) == 60
    assert effective_images(torch.cat([torch.zeros(90), torch.ones(10)]).long()) == 36
