"""Benchmarks of the path of rows into training: readers, streaming, and transforms of petastorm."""
