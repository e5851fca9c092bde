"""What keeps strangers out of a job: authenticated and encrypted connections, and the permissions of new files."""
