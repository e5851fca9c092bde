"""``horovodrun``: its command line, its configuration file and the command itself."""
