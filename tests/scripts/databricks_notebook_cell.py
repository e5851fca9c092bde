# Databricks notebook source
# ruff: noqa: E402
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
train_ds = TensorDataset(images[:1500], labels[:1500])
test_ds = TensorDataset(images[1500:], labels[1500:])

# COMMAND ----------

epochs = 20
batch_size = 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.layers(x)


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")


def accuracy(model):
    model.eval()
    with torch.no_grad():
        return (model(test_ds.tensors[0]).argmax(1) == test_ds.tensors[1]).float().mean().item()


model = Net()

# COMMAND ----------

import horovod.torch as hvd
from sparkdl import HorovodRunner


def train_hvd(model):
    hvd.init()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(hvd.local_rank())
    model = model.to(device)

    train_sampler = torch.utils.data.distributed.DistributedSampler(train_ds, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_ds, batch_size=batch_size, sampler=train_sampler)

    # Effective batch size in synchronous distributed training is scaled by the number of workers.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # All workers start from the same state.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(1, epochs + 1):
        train_sampler.set_epoch(epoch)
        train(model, device, train_loader, optimizer, epoch)

    return hvd.size(), accuracy(model.cpu()), model.cpu().state_dict()


# COMMAND ----------

hr = HorovodRunner(np=2)
size, reached, state = hr.run(train_hvd, model=model)

# COMMAND ----------

model.load_state_dict(state)
print(f"{size} ranks, accuracy {reached:.3f}, and {accuracy(model):.3f} here")
