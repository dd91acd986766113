"""MLflow: writes one MLflow run to MLFLOW_TRACKING_URI, or to MLflow's default."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from ..core.errors import ConfigError
from ..runs.summary import Summary
from . import TrackedRun
from .points import Point, collect_final_values, read_run_id, write_run_id

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
MAX_PARAMS_PER_CALL = 100  # a limit of MLflow
MAX_VALUE_LENGTH = 500  # longest parameter value in the oldest supported version


class MLflow:
    """Continues the same MLflow run after a resume and logs only what is missing there."""

    def __init__(self) -> None:
        self.uri = mlflow.get_tracking_uri()
        if self.uri.startswith(DATABASES) and find_spec("sqlalchemy") is None:
            raise ConfigError(
                "--track mlflow cannot write to a database without sqlalchemy: set MLFLOW_TRACKING_URI to a server, or"
                " pip install sqlalchemy alembic"
            )

    def begin(self, run: TrackedRun) -> None:
        self.client = MlflowClient(self.uri)
        file = run.folder / "mlflow.json"
        self.id, self.logged = read_run_id(file), set[tuple[str, int]]()
        if self.id is None or not self._reopen_run(self.id):
            self.id = self._create_run(run)
            write_run_id(file, self.id)

    def _reopen_run(self, id: str) -> bool:
        """Continue the MLflow run with this id; return False if it does not exist in the store."""
        try:
            names = self.client.get_run(id).data.metrics
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # this store never had the run
                return False
            raise
        for name in names:
            self.logged |= {(name, m.step) for m in self.client.get_metric_history(id, name)}
        self.client.update_run(id, status="RUNNING")
        return True

    def _create_run(self, run: TrackedRun) -> str:
        """Create an MLflow run with the configuration as parameters; return its id."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "heterophony")
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name)
        run_id = str(self.client.create_run(experiment, run_name=run.name).info.run_id)
        params = [Param(k, str(v)[:MAX_VALUE_LENGTH]) for k, v in run.config.items()]
        for i in range(0, len(params), MAX_PARAMS_PER_CALL):
            self.client.log_batch(run_id, params=params[i : i + MAX_PARAMS_PER_CALL])
        self.client.log_batch(run_id, tags=[RunTag("folder", str(run.folder.absolute()))])
        return run_id

    def log(self, point: Point) -> None:
        self._log_values(point.step, point.values)

    def _log_values(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values that the MLflow run does not have yet."""
        allowed = {re.sub(r"[^\w./: -]", "_", k): v for k, v in values.items()}
        now = int(1000 * time.time())
        new = [Metric(k, v, now, step) for k, v in allowed.items() if (k, step) not in self.logged]
        if new:
            self.client.log_batch(self.id, metrics=new)

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            self._log_values(summary.rounds, collect_final_values(summary))
            tag = RunTag("model_sha256", summary.model_sha256)
            self.client.log_batch(self.id, tags=[tag])
        with redirect_stdout(sys.stderr):  # MLflow prints a URL, and stdout is for results
            self.client.set_terminated(self.id, "FAILED" if summary is None else "FINISHED")
