"""Petastorm's API over this package's reader of Parquet files; its public names are those of `data.petastorm`."""
