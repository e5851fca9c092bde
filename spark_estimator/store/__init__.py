"""The store of a training's files: Horovod's `Store`, on any file system that fsspec or this machine has."""

from spark_estimator.store.dbfs import DBFSLocalStore
from spark_estimator.store.filesystem import AbstractFilesystemStore, Entry, FilesystemStore, LocalStore, Store
from spark_estimator.store.hdfs import HDFSStore

__all__ = ["AbstractFilesystemStore", "DBFSLocalStore", "Entry", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]
