"""Rows of a DataFrame on their way into batches: columns become fields, which lie in a rank's spool."""
