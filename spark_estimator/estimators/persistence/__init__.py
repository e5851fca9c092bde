"""What estimators write and read: saved estimators and models, checkpoints, manifests and checksums."""
