"""fasteraa: the best augmentation for your images, found by backpropagation."""

from fasteraa._version import __version__

__all__ = ["__version__"]
