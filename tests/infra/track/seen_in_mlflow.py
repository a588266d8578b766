"""Reads MLflow back, for the tests of tracking."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType


class Mlflow:
    """What a person sees in MLflow."""

    def __init__(self, uri: str, experiment: str = "overland") -> None:
        self.client = MlflowClient(tracking_uri=uri)
        found = self.client.get_experiment_by_name(experiment)
        assert found is not None
        self.experiment_id = found.experiment_id

    def runs(self) -> dict[str, Run]:
        found = self.client.search_runs([self.experiment_id], run_view_type=ViewType.ALL)
        names = [run.info.run_name for run in found]
        assert len(names) == len(set(names)), "a run was created twice"
        return {run.info.run_name: run for run in found}

    def run(self, name: str) -> Run:
        """With the models that it took and gave, which a search leaves out."""
        return self.client.get_run(self.runs()[name].info.run_id)

    def series(self, run: Run, key: str) -> list[tuple[int, float]]:
        """(step, value) of every point, in the order of steps and times."""
        history = self.client.get_metric_history(run.info.run_id, key)
        return [(m.step, m.value) for m in sorted(history, key=lambda m: (m.step, m.timestamp))]

    def output_steps(self, name: str) -> list[int]:
        """Steps of the models that the run gave."""
        return sorted(output.step for output in self.run(name).outputs.model_outputs)

    def artifacts(self, run: Run) -> set[str]:
        return {file.path for file in self.client.list_artifacts(run.info.run_id)}

    def text(self, run: Run, name: str, folder: Path) -> str:
        return Path(self.client.download_artifacts(run.info.run_id, name, str(folder))).read_text()
