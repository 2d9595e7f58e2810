"""Scored steps on disk and their figures: folders, the schema, tables. Needs no torch."""
