# Databricks notebook source
# MAGIC %md
# MAGIC Trains a small network on two ranks, each in a Spark task, and shows the loss.

# COMMAND ----------

from spark_estimator import HorovodRunner


def train(steps: int) -> float:
    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    features = torch.randn(4096, 8)
    labels = features.sum(1, keepdim=True).sin()
    features, labels = features[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]  # this rank's share
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), labels)
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and hvd.rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    return float(hvd.allreduce(loss.detach(), name="loss"))


# COMMAND ----------

loss = HorovodRunner(np=2, driver_log_verbosity="all").run(train, steps=200)
print(f"loss {loss:.4f}")
assert loss < 0.2
