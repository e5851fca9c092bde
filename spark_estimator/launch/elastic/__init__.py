"""Elastic jobs: which processes there are, on which hosts, and when new ones replace lost ones."""
