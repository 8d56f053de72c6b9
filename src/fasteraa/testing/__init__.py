"""Checks that every operation, method and runner passes, and that a third party can call for its own."""
