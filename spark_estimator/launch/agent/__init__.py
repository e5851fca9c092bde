"""The process that starts workers on another host, and the frames that it exchanges with the launcher."""
