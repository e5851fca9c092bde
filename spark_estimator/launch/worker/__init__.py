"""One rank's processes: the supervisor that starts and watches it, and the worker that runs the user's function."""
