"""The driver's view of a running job: the ranks' lines, messages and failures, while they happen.

The *driver channel* is one authenticated connection from each rank's supervisor to the driver. It carries text only:
lines, messages and failure reports to the driver, the order to stop from it. Values are never sent on it.
"""
