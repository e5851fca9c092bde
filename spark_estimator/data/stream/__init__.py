"""Rows that are read again in each epoch, within limits of disk and memory: data larger than both."""
