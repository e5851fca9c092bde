"""A rank's own rows: an equal share of them in nameless local files, mapped and gathered into batches."""
