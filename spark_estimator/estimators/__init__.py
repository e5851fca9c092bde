"""Estimators: ``fit(df)`` trains a framework's model on ranks, ``transform(df)`` predicts with it, as Spark ML does."""
