"""Predictions of a trained model for the rows of a DataFrame, and the columns that hold them."""
