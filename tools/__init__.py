"""Programs that write files of the repository; not in the wheel."""
