"""A job in values: what is run, on which hosts, with which environment; its failures and its results."""
