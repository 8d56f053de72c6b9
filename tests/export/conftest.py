import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when keras is first imported
