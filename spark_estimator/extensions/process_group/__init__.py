"""The ``torch.distributed`` backend on the engine. `spark_estimator.torch.process_group` has its public names.

The docstring there has what the backend promises, in what order things happen, and what fails how.
"""

from spark_estimator.extensions.process_group.creation import register
from spark_estimator.extensions.process_group.group import EngineGroup
from spark_estimator.extensions.process_group.issuing import BACKEND_NAME

__all__ = ["BACKEND_NAME", "EngineGroup"]

register()
