"""Numbers in sentences."""

import pytest

from fasteraa.runtime.words import counted


@pytest.mark.parametrize(("count", "words"), [(0, "0 tries"), (1, "1 try"), (2, "2 tries")])
def test_a_noun_has_the_number_of_its_count(count, words):
    assert counted(count, "try", "tries") == words
    assert counted(count, "run") == words.replace("tries", "runs").replace("try", "run")
