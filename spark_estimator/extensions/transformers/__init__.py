"""Hugging Face: `TransformersEstimator` fine-tunes a pretrained model on a column of texts, and its model predicts."""
