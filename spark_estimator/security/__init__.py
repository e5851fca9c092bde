"""Protects a job from other users: authenticated and encrypted connections, and the permissions of new files."""
