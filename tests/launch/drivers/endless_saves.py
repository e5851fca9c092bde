"""A user's driver program that saves two estimators in turn, over and over, in a thread for each of some folders.

Arguments: the folders. It prints SAVING when each has been written once.
"""

import sys
import threading

import torch
from sessions import session

from spark_estimator import TorchEstimator

spark = session("local[1]")


def estimator(epochs):
    net = torch.nn.Linear(100, 5_000)  # 2 MB
    torch.nn.init.constant_(net.weight, float(epochs))
    return TorchEstimator(model=net, loss=torch.nn.MSELoss(), epochs=epochs)


def save(path):
    for number in range(1, 1_000_000):
        estimator(1 + number % 2).write().overwrite().save(path)
        if number == 1:
            saved.release()


saved = threading.Semaphore(0)
for folder in sys.argv[1:]:
    threading.Thread(target=save, args=(folder,), daemon=True).start()
for _ in sys.argv[1:]:
    saved.acquire()
print("SAVING", flush=True)
threading.Event().wait()
