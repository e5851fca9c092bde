"""Benchmarks of the way of rows into training: readers, streaming, and transforms of petastorm."""
