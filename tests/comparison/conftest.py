from ..train.conftest import cache, data, held_out, quick, split, tiny  # noqa: F401  (fixtures)
