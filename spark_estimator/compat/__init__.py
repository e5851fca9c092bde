"""Runs code that was written for Horovod and HorovodRunner without changes, including its imports.

An *alias* is an old name (``horovod.torch``, ``sparkdl.HorovodRunner``) for an object of this package:
``horovod.torch`` **is** ``spark_estimator.torch``, the same module and not a copy, so that pickles contain the new
name.

There are three ways to enable the aliases; none of them changes an installed Horovod, sparkdl or petastorm:

* ``spark_estimator.compat.install()`` in one process;
* ``python -m spark_estimator compat enable`` for a Python environment (and ``disable``, ``status``);
* automatically in the workers and commands that this package starts.
"""

from __future__ import annotations

from spark_estimator.compat.importer import install, real_horovod_present, shims_path, uninstall

__all__ = ["install", "real_horovod_present", "shims_path", "uninstall"]
