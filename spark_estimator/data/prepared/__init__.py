"""Horovod's prepared data sets in a store: written and described by `data_sets`, read on ranks by `module` and
`loaders`.
"""
