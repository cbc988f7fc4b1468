"""The published tables and figures, run again: plans (`plan`), protocols, records, verdicts, reports.

``simstream repro`` is the command line of it.
"""

from .plan import Cell, Paper, Study, load_paper, paper_ids, select
from .records import RecordStore

__all__ = ["Cell", "Paper", "RecordStore", "Study", "load_paper", "paper_ids", "select"]
