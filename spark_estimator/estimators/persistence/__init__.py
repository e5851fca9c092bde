"""Files of estimators: saved estimators and models, checkpoints, manifests and checksums."""
