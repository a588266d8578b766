"""Logs -> verdict. docs/diagnosis.md has a table of which module answers which question."""
