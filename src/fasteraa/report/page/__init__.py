"""The report: one HTML file that needs nothing else, made from a run folder."""

from fasteraa.report.page.comparison import blocks
from fasteraa.report.page.facts import time_words
from fasteraa.report.page.render import Options, make_page, view, write_report

__all__ = ["Options", "blocks", "make_page", "time_words", "view", "write_report"]
