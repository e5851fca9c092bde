"""Programs in the shape of TPCx-AI's use cases 2, 5 and 9, which train Keras models with `horovod.spark.keras`.

They are no TPC benchmark: code, data and sizes are this project's own.
"""
