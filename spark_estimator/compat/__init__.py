"""Lets code that was written for Horovod and HorovodRunner run unchanged, its imports included.

An *alias* is an old name (``horovod.torch``, ``sparkdl.HorovodRunner``) that leads to the very object that bears a
new one: ``horovod.torch`` **is** ``spark_estimator.torch``, one module and not a copy, so that what is pickled travels
under its own, new name.

Three ways to switch it on, none of which touches a real Horovod or sparkdl:

* ``spark_estimator.compat.install()`` in one process;
* ``python -m spark_estimator compat enable`` for a Python environment (and ``disable``, ``status``);
* by itself in the workers and commands that this package starts.
"""

from __future__ import annotations

from spark_estimator.compat.importer import install, real_horovod_present, shims_path, uninstall

__all__ = ["install", "real_horovod_present", "shims_path", "uninstall"]
