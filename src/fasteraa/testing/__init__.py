"""Checkers that every operation passes, and that a third party can call for its own."""
