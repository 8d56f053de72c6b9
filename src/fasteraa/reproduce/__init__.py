"""The paper's tables and figures as named recipes."""

from __future__ import annotations

from fasteraa.reproduce.result import LineResult, Reproduction
from fasteraa.reproduce.schema import Line, Search, Table
from fasteraa.reproduce.table_runner import reproduce
from fasteraa.reproduce.tables import TABLES

__all__ = ["TABLES", "Line", "LineResult", "Reproduction", "Search", "Table", "reproduce"]
