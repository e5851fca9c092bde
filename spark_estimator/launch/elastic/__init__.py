"""Elastic jobs: which processes there are, on which hosts, and when new ones take the place of lost ones."""
