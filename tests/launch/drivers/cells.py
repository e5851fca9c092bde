"""A shell as Apache Livy's for Python: it runs each cell by ``exec`` in one dict, which has no ``__name__``.

Argument: the master. It prints a line ``RESULT {...}`` with what the last cell has left in ``results``.
"""

import ast
import json
import sys

from sessions import session

CELLS = [
    """
import torch
from spark_estimator import HorovodRunner, TorchEstimator
results = {}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x):
        return self.layer(x)
""",
    """
def twice(x):
    return 2 * x
def train(x):
    import spark_estimator.torch as hvd
    hvd.init()
    return twice(x) + hvd.size()
results["run"] = HorovodRunner(np=2).run(train, x=5)
""",
    """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
frame = spark.range(20).selectExpr("id / 10.0 as x", "id / 5.0 as y")
columns = {"feature_cols": ["x"], "label_cols": ["y"]}
estimator = TorchEstimator(model=net, loss=torch.nn.MSELoss(), optimizer=optimizer, num_proc=2, epochs=2, **columns)
results["fit"] = estimator.fit(frame).transform(frame).count()
""",
]
names = {"spark": session(sys.argv[1])}
for cell in CELLS:
    exec(compile(ast.parse(cell), "<stdin>", "exec"), names)
print("RESULT " + json.dumps(names["results"]), flush=True)
