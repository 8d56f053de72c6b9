"""The paper's tables and figures as named recipes."""

from __future__ import annotations

from fasteraa.reproduce.result import Found, Reproduction
from fasteraa.reproduce.schema import Line, Search, Table
from fasteraa.reproduce.table_runner import reproduce
from fasteraa.reproduce.tables import TABLES

__all__ = ["TABLES", "Found", "Line", "Reproduction", "Search", "Table", "reproduce"]
