"""The manifests of deploy/kubernetes against Kubernetes' own schemas, and against the commands that they start."""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest
import yaml
from pydantic import ValidationError

from pipelines.cli.exit_codes import REFUSED, USER_MISTAKE
from pipelines.cli.launch import daily as daily_command
from pipelines.cli.serve import serve as serve_command
from pipelines.launch.daily.settings import Settings as LoopSettings
from serving.files.database_url import DatabaseUrl
from serving.http.app import create_app
from serving.http.route_table import OPEN
from serving.settings import PREFIX, Settings
from tests.support.paths import ROOT
from towers.training.workers import place_of

FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.31", "1.33")
SERVICES = ("towers", "replicas")


def documents(name: str = "towers") -> dict[str, dict[str, Any]]:
    every = list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))
    by_kind = {each["kind"]: each for each in every}
    assert len(by_kind) == len(every), "a second document of a kind would not be tested"
    return by_kind


def pod(name: str) -> dict[str, Any]:
    return documents(name)["Deployment"]["spec"]["template"]["spec"]


def container(name: str = "towers") -> dict[str, Any]:
    return pod(name)["containers"][0]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(bundle=tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_each_document_fits_its_schema(name: str, version: str) -> None:
    for document in documents(name).values():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_tool_refuses_a_key_that_is_none() -> None:
    document = documents()["PodDisruptionBudget"]
    document["spec"]["maxUnavailble"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


def test_the_job_of_each_day_runs_one_at_a_time_and_does_not_repeat_a_refusal() -> None:
    job = documents("daily")["CronJob"]["spec"]
    its_pod = job["jobTemplate"]["spec"]["template"]["spec"]
    (daily,) = its_pod["containers"]
    assert job["concurrencyPolicy"] == "Forbid"
    assert daily["command"][:2] == ["towers", daily_command.__name__]
    rule = job["jobTemplate"]["spec"]["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [USER_MISTAKE, REFUSED])
    # Kubernetes allows such a policy only where pods are not restarted in place.
    assert (its_pod["restartPolicy"], rule["onExitCodes"]["containerName"]) == ("Never", daily["name"])
    assert (daily["image"], its_pod["securityContext"]["runAsUser"]) == (
        container()["image"],
        pod("towers")["securityContext"]["runAsUser"],
    )


def test_replicas_can_mount_the_bundles_of_each_day() -> None:
    """As daily.yaml says: its claim, and the folder of it that `towers daily` publishes to unless told otherwise."""
    text = (FOLDER / "daily.yaml").read_text(encoding="utf-8")
    its_pod = documents("daily")["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (claim,) = (each["persistentVolumeClaim"] for each in its_pod["volumes"] if "persistentVolumeClaim" in each)
    assert f"take claimName: {claim['claimName']}, and add subPath: {LoopSettings.model_fields['root'].default}" in text
    found = documents()["Deployment"]
    spec = found["spec"]["template"]["spec"]
    spec["volumes"][0]["persistentVolumeClaim"]["claimName"] = claim["claimName"]
    spec["containers"][0]["volumeMounts"][0]["subPath"] = "bundles"
    kubernetes_validate.validate(found, VERSIONS[0], strict=True)


@pytest.mark.parametrize("service", SERVICES)
def test_variables_are_settings(service: str) -> None:
    names = [each["name"] for each in container(service)["env"]]
    assert names
    assert {name.removeprefix(PREFIX).lower() for name in names} <= set(Settings.model_fields)


@pytest.mark.parametrize("service", SERVICES)
def test_a_pod_gets_no_variables_of_services(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a Service named towers begin as the settings do: TOWERS_PORT would be tcp://10.0.0.1:80."""
    assert f"{documents(service)['Service']['metadata']['name'].upper()}_" == PREFIX
    monkeypatch.setenv("TOWERS_PORT", "tcp://10.0.0.1:80")
    with pytest.raises(ValidationError, match="port"):
        Settings(bundle=Path("b"))
    assert pod(service)["enableServiceLinks"] is False


@pytest.mark.parametrize("service", SERVICES)
def test_probes_ask_routes_of_the_service(service: str, settings: Settings) -> None:
    routes = {getattr(route, "path", None) for route in create_app(settings).routes}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(service)[probe]["httpGet"]["path"] in routes


def mounted(service: str, path: str) -> dict[str, Any]:
    """The Secret whose file a path of the container names; its head says how to create it with that file."""
    place = PurePosixPath(path)
    (mount,) = (each for each in container(service)["volumeMounts"] if each["mountPath"] == str(place.parent))
    assert "subPath" not in mount, "it would never show a changed Secret"
    (secret,) = (each["secret"] for each in pod(service)["volumes"] if each["name"] == mount["name"])
    head = (FOLDER / f"{service}.yaml").read_text(encoding="utf-8").partition("apiVersion")[0]
    assert f"kubectl create secret generic {secret['secretName']} --from-file={place.name}" in head
    return secret


@pytest.mark.parametrize("service", SERVICES)
def test_callers_need_a_key_and_probes_none(service: str) -> None:
    (path,) = (each["value"] for each in container(service)["env"] if each["name"] == "TOWERS_KEYS")
    assert "items" not in mounted(service, path)  # each file of the Secret, under its name
    probes = {
        container(service)[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert probes <= OPEN


def test_prometheus_finds_the_pods_by_the_job_of_the_operations_page() -> None:
    page = (ROOT / "docs" / "service" / "operations.md").read_text(encoding="utf-8")
    (label, port) = re.findall(r"^ *regex: (\w+);(\w+)$", page, re.MULTILINE)[0]
    for service in SERVICES:
        template = documents(service)["Deployment"]["spec"]["template"]["metadata"]
        assert (template["labels"]["app"], container(service)["ports"][0]["name"]) == (label, port)
        # A job that scrapes every annotated pod has no key, or sends it to every pod.
        assert "annotations" not in template


def test_the_database_of_the_replicas_is_verified_as_the_operations_page_says() -> None:
    page = (ROOT / "docs" / "service" / "operations.md").read_text(encoding="utf-8")
    ((told,), options) = (
        [parse_qs(urlsplit(url).query) for url in re.findall(r"postgresql://towers:PASSWORD@[^'\"\s]+", text)]
        for text in (page, (FOLDER / "replicas.yaml").read_text(encoding="utf-8"))
    )
    assert [each["sslmode"] for each in options] == [told["sslmode"]]
    # The user of the image has no home, in which libpq would look for it.
    (root,) = options[0]["sslrootcert"]
    name = PurePosixPath(root).name
    assert mounted("replicas", root) == {"secretName": "towers-state", "items": [{"key": name, "path": name}]}


@pytest.mark.parametrize("service", SERVICES)
def test_the_grace_period_is_longer_than_a_stop_may_take(service: str, settings: Settings) -> None:
    pause = int(container(service)["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = pod(service)["terminationGracePeriodSeconds"]
    assert grace > pause + settings.linger_s + settings.graceful_timeout_s


@pytest.mark.parametrize("service", SERVICES)
def test_everything_selects_the_pods_of_the_deployment(service: str) -> None:
    found = documents(service)
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_the_autoscaler_scales_the_deployment() -> None:
    found = documents()
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]


@pytest.mark.parametrize("service", SERVICES)
def test_port_and_user_are_those_of_the_image(service: str) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^EXPOSE (\d+)", dockerfile, re.M)[1] == str(container(service)["ports"][0]["containerPort"])
    assert f"USER {pod(service)['securityContext']['runAsUser']}\n" in dockerfile


def test_the_mount_is_where_the_image_looks_for_bundles() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r'"--bundle", "([^"]+)"', dockerfile)[1] == container()["volumeMounts"][0]["mountPath"]


def test_replicas_without_a_volume_share_a_store_and_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = container("replicas")
    command, option, bundle = shared["command"][1:]
    assert (command, option) == (serve_command.__name__, "--bundle")
    assert documents("replicas")["Deployment"]["spec"]["replicas"] == 3
    url = "postgresql://towers:secret@db:5432/towers"
    for each in shared["env"]:
        secret = each.get("valueFrom", {}).get("secretKeyRef")
        assert (each["name"] == "TOWERS_STATE") == (secret is not None)
        monkeypatch.setenv(each["name"], each["value"] if secret is None else url)
    settings = Settings(bundle=bundle)
    assert settings.store == bundle
    assert isinstance(settings.state, DatabaseUrl)
    assert all(set(each) - {"name"} <= {"emptyDir", "secret"} for each in pod("replicas")["volumes"])
    assert {each["mountPath"]: each["name"] for each in shared["volumeMounts"]}[str(settings.cache)] == "cache"


def test_both_deployments_treat_a_replica_alike() -> None:
    parts = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "securityContext")
    one, other = container("towers"), container("replicas")
    assert {name: one[name] for name in parts} == {name: other[name] for name in parts}


def test_the_autoscaler_reads_a_metric_of_the_service() -> None:
    metric = documents()["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    operations = (ROOT / "docs" / "service" / "operations.md").read_text(encoding="utf-8")
    assert (
        f"| `{metric}` | gauge |" in operations
    )  # tests/repository/test_operations_docs.py holds the table against the service


def test_each_pod_of_the_training_is_a_worker_of_its_cluster() -> None:
    found = documents("train")
    job, service = found["Job"], found["Service"]
    its_pod = job["spec"]["template"]
    name, count = job["metadata"]["name"], job["spec"]["completions"]
    assert job["spec"]["parallelism"] == count
    assert its_pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == its_pod["metadata"]["labels"]
    [train] = its_pod["spec"]["containers"]
    port = train["ports"][0]["containerPort"]
    assert service["spec"]["ports"][0]["port"] == port
    index, config = train["env"]
    assert index["name"] == "INDEX"
    assert config["name"] == "TF_CONFIG"
    assert json.loads(config["value"].replace("$(INDEX)", "0"))
    for rank in range(count):
        place = place_of(config["value"].replace("$(INDEX)", str(rank)))
        assert place is not None
        assert place.rank == rank
        assert place.addresses == [f"{name}-{each}.{service['metadata']['name']}:{port}" for each in range(count)]
