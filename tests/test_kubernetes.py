"""The JobSet for Kubernetes fits the schemas, and its pods know of one another."""

import copy
import pathlib

import kubernetes_validate
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Of a JobSet, what we use; anything else in these places is a slip. What it makes jobs of is for
# the schemas of Kubernetes itself.
JOBSET = {
  "apiVersion": str,
  "kind": str,
  "metadata": {"name": str},
  "spec": {
    "coordinator": {"replicatedJob": str, "jobIndex": int, "podIndex": int},
    "failurePolicy": {
      "maxRestarts": int,
      "rules": [{"name": str, "action": str, "onJobFailureReasons": [str]}],
    },
    "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": dict}}],
  },
}


def check(value, expected, where="JobSet"):
  if isinstance(expected, dict):
    assert isinstance(value, dict), where
    assert value.keys() == expected.keys(), where
    for name in value:
      check(value[name], expected[name], f"{where}.{name}")
  elif isinstance(expected, list):
    assert isinstance(value, list) and value, where
    for item in value:
      check(item, expected[0], where)
  else:
    assert isinstance(value, expected), where


@pytest.fixture(scope="module")
def jobset():
  return yaml.safe_load((ROOT / "launch" / "kubernetes.yaml").read_text())


def test_the_jobset_fits_the_schemas(jobset):
  check(jobset, JOBSET)
  assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
  template = jobset["spec"]["replicatedJobs"][0]["template"]
  job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "workers"}, **template}
  version = kubernetes_validate.latest_version()
  kubernetes_validate.validate(job, version, strict=True)
  slip = copy.deepcopy(job)
  slip["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1
  with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
    kubernetes_validate.validate(slip, version, strict=True)


def test_the_pods_of_the_jobset_know_of_one_another(jobset):
  spec = jobset["spec"]
  (workers,) = spec["replicatedJobs"]
  assert spec["coordinator"] == {"replicatedJob": workers["name"], "jobIndex": 0, "podIndex": 0}
  job = workers["template"]["spec"]
  pod = job["template"]["spec"]
  (container,) = pod["containers"]
  environment = {entry["name"]: entry for entry in container["env"]}
  count = environment["TMEM_PROCESS_COUNT"]["value"]
  assert (job["completionMode"], workers["replicas"], job["backoffLimit"]) == ("Indexed", 1, 0)
  assert job["parallelism"] == job["completions"] == int(count)
  port = container["ports"][0]["containerPort"]
  assert environment["TMEM_COORDINATOR"]["value"] == f"$(COORDINATOR_HOST):{port}"
  index = environment["TMEM_PROCESS_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
  assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
  # Variables refer to those before them only.
  assert list(environment).index("COORDINATOR_HOST") < list(environment).index("TMEM_COORDINATOR")
  assert pod["terminationGracePeriodSeconds"] >= 60
  assert pod["restartPolicy"] == "Never"  # podFailurePolicy asks for it
  assert any(argument.startswith("--workdir=/shared/") for argument in container["args"])
