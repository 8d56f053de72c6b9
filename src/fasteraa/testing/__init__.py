"""Checks that every operation, method, runner and data source passes, and that a third party can call for its own."""
