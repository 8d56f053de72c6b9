"""The key of a function is another one when what it does is edited, and the same in another process."""

import subprocess
import sys
from functools import partial, wraps
from types import FunctionType, ModuleType

import pytest

from fasteraa.errors import ConfigError
from fasteraa.train.function_key import function_key

SOURCE = """
from functools import lru_cache
RATE = 0.1
NAMES = ("a", "b", "c")
SEEN = []

@lru_cache
def helper(epochs):
    return 2 * epochs if epochs else train

def train(policy, seed, out, batch=8, *, wide=False):
    "Any training."
    inner = [each + 1 for each in range(3)][0:2]
    SEEN.append(seed)
    return helper(3) * RATE * len(NAMES) if seed in {"x", "y", "z"} else inner[0]
"""


def key_of(source, name="train"):
    module = ModuleType("mine")
    exec(source, module.__dict__)
    return function_key(vars(module)[name])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("inner[0]", "inner[1]"),
        ("each + 1", "each + 2"),
        ("len(NAMES)", "max(NAMES)"),
        ("batch=8", "batch=9"),
        ("wide=False", "wide=True"),
        ("RATE = 0.1", "RATE = 0.2"),
        ("2 * epochs", "3 * epochs"),
    ],
)
def test_an_edit_is_another_training(before, after):
    assert before in SOURCE
    assert key_of(SOURCE.replace(before, after)) != key_of(SOURCE)


def test_another_place_in_the_file_is_the_same_training():
    assert key_of("\n\nimport math\n" + SOURCE) == key_of(SOURCE)


def test_it_is_the_same_in_another_process():
    """Sets have another order there."""
    body = f"""
import sys, types
from fasteraa.train.function_key import function_key
module = types.ModuleType("mine")
exec({SOURCE!r}, module.__dict__)
print(function_key(module.train))
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == key_of(SOURCE)


def test_lambdas_are_told_apart():
    one, other = (lambda policy, seed, out: 1.0), (lambda policy, seed, out: 2.0)
    assert function_key(one) != function_key(other)


def test_values_that_it_holds_count():
    def make(rate):
        return lambda policy, seed, out: rate

    def logged(function):
        @wraps(function)
        def inner(*given):
            return function(*given)

        return inner

    assert function_key(make(1)) == function_key(make(1)) != function_key(make(2))
    assert function_key(logged(make(1))) != function_key(logged(make(2)))
    assert function_key(partial(make(1), lr=1)) != function_key(partial(make(1), lr=2))


def test_what_a_training_adds_to_is_left_out():
    """A notebook's list of what was trained: the same call continues."""
    seen, module = [], ModuleType("mine")
    exec(SOURCE, module.__dict__)
    before = function_key(module.train), function_key(lambda policy, seed, out: seen.append(seed))
    module.train(None, "x", None)
    seen.append(1)
    assert function_key(module.train) == before[0]
    assert before[1] == function_key(lambda policy, seed, out: seen.append(seed))


def holds_itself(policy, seed, out, values=[]):  # noqa: B006
    return 1.0


holds_itself.__defaults__[0].append(holds_itself.__defaults__[0])


class Judge:
    def __call__(self, policy, seed, out):
        return 1.0

    def score(self, policy, seed, out):
        return 1.0


JUDGE = Judge()


def holds_one(policy, seed, out, judge=JUDGE):
    return 1.0


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (JUDGE, "Judge"),
        (JUDGE.score, "method"),
        (partial(JUDGE), "Judge"),
        (holds_one, "Judge"),
        (max, "builtin_function_or_method"),
        (holds_itself, "value that cannot be read"),
    ],
    ids=["object", "method", "partial", "default", "builtin", "itself"],
)
def test_what_cannot_be_compared_needs_a_name(function, kind):
    assert callable(function)
    with pytest.raises(ConfigError, match=rf"a {kind}, and no change of it .*: name the training, key="):
        function_key(function)


def test_what_it_only_names_is_left_out():
    """A module, a class or an object of the file: code that uses them counts."""
    assert isinstance(uses_judge, FunctionType)
    assert function_key(uses_judge) == function_key(uses_judge)


def uses_judge(policy, seed, out):
    return JUDGE(policy, seed, sys.maxsize)
