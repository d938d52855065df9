"""The option `--columns` of all verbs that read a manifest."""

from __future__ import annotations

COLUMNS_HELP = "Columns to read, e.g. patient=case_id,label=subtype; patient=tcga-barcode reads TCGA slide names."
