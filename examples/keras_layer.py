"""A policy as a Keras layer: it acts while training and is saved with the model. Keras runs on torch here.

python examples/keras_layer.py [policy.json]
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads it when it is imported

import keras

import fasteraa
from fasteraa.data import load


def main(policy="trivialaugment-wide", count=300, epochs=3):
    data = load(subset=count)
    images, labels = data.images.permute(0, 2, 3, 1).numpy(), data.labels.numpy()  # uint8 (N, H, W, C)
    model = keras.Sequential(
        [
            keras.Input(images.shape[1:]),
            fasteraa.load(policy).to_keras(),  # first; value_range=(0, 1) if your images are in [0, 1]
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(len(data.classes), activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    losses = model.fit(images, labels, batch_size=50, epochs=epochs, verbose=0).history["loss"]
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    return model, losses


if __name__ == "__main__":
    main(*sys.argv[1:])
