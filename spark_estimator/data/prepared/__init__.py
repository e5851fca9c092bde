"""Horovod's way to data in a store: `data_sets` writes and describes it, `module` and `loaders` read it on ranks."""
