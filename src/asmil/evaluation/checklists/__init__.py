"""Checklists of reporting guidelines, filled in from a run and its validation; see docs/checklists.md."""
