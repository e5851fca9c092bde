"""The Keras estimator and its model."""
