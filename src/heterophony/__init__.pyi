"""The public names, one line each: `__init__.py` imports them from here at first use."""

from .core.algorithm import Algorithm as Algorithm
from .core.algorithm import Reply as Reply
from .core.algorithm import Server as Server
from .core.algorithm import as_agreed as as_agreed
from .core.algorithm import equally as equally
from .core.algorithm import mean as mean
from .core.client import Client as Client
from .core.errors import HeterophonyError as HeterophonyError
from .core.fields import setting as setting
from .core.net import Net as Net
from .core.samples import Samples as Samples
from .core.split import split as split
from .core.tensors import Tensors as Tensors
from .core.tensors import answer as answer
from .core.tensors import frozen as frozen
from .core.tensors import mix as mix
from .core.tensors import params as params
from .core.tensors import state as state
from .core.tensors import weights as weights
from .core.training import Training as Training
from .data.federation import Federation as Federation
from .data.partitions import IID as IID
from .data.partitions import Classes as Classes
from .data.partitions import Dirichlet as Dirichlet
from .data.partitions import FromFile as FromFile
from .data.partitions import Natural as Natural
from .data.partitions import PerClientDirichlet as PerClientDirichlet
from .data.partitions import Quantity as Quantity
from .data.partitions import Shards as Shards
from .data.partitions import Share as Share
from .data.partitions import Terms as Terms
from .data.skew import Noise as Noise
from .data.skew import Rotation as Rotation
from .engines.base import Cluster as Cluster
from .experiments.federate import federate as federate
from .experiments.run import run as run
from .population.availability import Availability as Availability
from .population.availability import Diurnal as Diurnal
from .population.availability import Trace as Trace
from .population.device_speeds import Devices as Devices
from .population.faults import Faults as Faults
from .population.participation import Skewed as Skewed
from .population.participation import Uniform as Uniform
from .runs.result import Result as Result

__version__: str
