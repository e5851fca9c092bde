"""Random jobs with random faults, each judged by an oracle: ``make chaos SECONDS=... SEED=...``."""
