"""Applying a policy once, offline: an augmented copy of a data set, as image folders or as shards."""
