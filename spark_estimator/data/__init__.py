"""Rows of a DataFrame on their way into batches: columns become fields, fields lie in a rank's spool, epochs read it."""
