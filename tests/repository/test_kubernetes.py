"""The manifests of deploy/kubernetes against Kubernetes' own schemas, and against the service that they start."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pipelines.cli.exit_codes import REFUSED, USER_MISTAKE
from pipelines.cli.launch import daily as daily_command
from serving.http.app import create_app
from serving.settings import PREFIX, Settings
from tests.support.paths import ROOT

PATHS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.31", "1.33")


def documents() -> dict[str, dict[str, Any]]:
    every = [each for path in PATHS for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    by_kind = {each["kind"]: each for each in every}
    assert len(by_kind) == len(every), "a second document of a kind would not be tested"
    return by_kind


def container() -> dict[str, Any]:
    return documents()["Deployment"]["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(bundle=tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "CronJob"])
def test_each_document_fits_its_schema(kind: str, version: str) -> None:
    kubernetes_validate.validate(documents()[kind], version, strict=True)


def test_the_schema_tool_refuses_a_key_that_is_none() -> None:
    document = documents()["PodDisruptionBudget"]
    document["spec"]["maxUnavailble"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


def test_the_job_of_each_day_runs_one_at_a_time_and_does_not_repeat_a_refusal() -> None:
    job = documents()["CronJob"]["spec"]
    pod = job["jobTemplate"]["spec"]["template"]["spec"]
    (daily,) = pod["containers"]
    assert job["concurrencyPolicy"] == "Forbid"
    assert daily["command"][:2] == ["towers", daily_command.__name__]
    rule = job["jobTemplate"]["spec"]["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [USER_MISTAKE, REFUSED])
    # Kubernetes allows such a policy only where pods are not restarted in place.
    assert (pod["restartPolicy"], rule["onExitCodes"]["containerName"]) == ("Never", daily["name"])
    assert (daily["image"], pod["securityContext"]["runAsUser"]) == (
        container()["image"],
        documents()["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"],
    )


def test_variables_are_settings() -> None:
    names = [each["name"] for each in container()["env"]]
    assert names
    assert {name.removeprefix(PREFIX).lower() for name in names} <= set(Settings.model_fields)


def test_probes_ask_routes_of_the_service(settings: Settings) -> None:
    routes = {getattr(route, "path", None) for route in create_app(settings).routes}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[probe]["httpGet"]["path"] in routes


def test_the_grace_period_is_longer_than_a_stop_may_take(settings: Settings) -> None:
    pause = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = documents()["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > pause + settings.linger_s + settings.graceful_timeout_s


def test_everything_selects_the_pods_of_the_deployment() -> None:
    found = documents()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]


def test_ports_and_mounts_are_those_of_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^EXPOSE (\d+)", dockerfile, re.M)[1] == str(container()["ports"][0]["containerPort"])
    assert re.search(r'"--bundle", "([^"]+)"', dockerfile)[1] == container()["volumeMounts"][0]["mountPath"]
    uid = documents()["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"USER {uid}\n" in dockerfile


def test_the_autoscaler_reads_a_metric_of_the_service() -> None:
    metric = documents()["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    operations = (ROOT / "docs" / "service" / "operations.md").read_text(encoding="utf-8")
    assert (
        f"| `{metric}` | gauge |" in operations
    )  # tests/repository/test_operations_docs.py holds the table against the service
